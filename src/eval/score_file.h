#pragma once

// The scores of an unfinished run, so that it can be taken up again.

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/row_score.h"
#include "formats/safetensors.h"

namespace calla {

// What a run's scores depend on, by name: the model, the text, the options. A file serves only a run that has the same.
using RunIdentity = std::map<std::string, std::string>;

// Writes a safetensors file: "scores", f64 [rows, 5], a row as in RowScore; and for each part of the identity a tensor
// u8 that holds its text. Atomic: a run that is killed leaves the old file or the new one.
Result<void> save_scores(const std::filesystem::path& path, const RunIdentity& run,
                         const std::vector<RowScore>& scores);

// The scores in a file; none if there is no such file. Errors: a file of another run (which part differs is said), more
// than max_rows rows, numbers that no row can have.
Result<std::vector<RowScore>> load_scores(const std::filesystem::path& path, const RunIdentity& run, size_t max_rows);
// The same from the tensors of a file; `name` starts every message.
Result<std::vector<RowScore>> parse_scores(const TensorMap& tensors, std::string_view name, const RunIdentity& run,
                                           size_t max_rows);

}  // namespace calla
