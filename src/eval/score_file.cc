#include "eval/score_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <system_error>

namespace calla {
namespace {

constexpr int64_t kColumns = 5;
static_assert(sizeof(RowScore) == kColumns * sizeof(double));

bool possible(const RowScore& s) {
  for (const double v : {s.nll, s.reference_nll, s.kl}) {
    if (!(v >= 0) || !std::isfinite(v)) return false;
  }
  return (s.top1 == 0 || s.top1 == 1) && s.top8 >= 0 && s.top8 <= 1;
}

}  // namespace

Result<void> save_scores(const std::filesystem::path& path, const RunIdentity& run,
                         const std::vector<RowScore>& scores) {
  std::vector<TensorData> tensors = {
      {"scores", Dtype::kF64, {static_cast<int64_t>(scores.size()), kColumns}, std::as_bytes(std::span(scores))}};
  for (const auto& [name, value] : run) {
    tensors.push_back({name, Dtype::kU8, {static_cast<int64_t>(value.size())}, std::as_bytes(std::span(value))});
  }
  return write_safetensors(path, tensors);
}

Result<std::vector<RowScore>> load_scores(const std::filesystem::path& path, const RunIdentity& run, size_t max_rows) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::vector<RowScore>();
  CALLA_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  return parse_scores(file.tensors(), path.string(), run, max_rows);
}

Result<std::vector<RowScore>> parse_scores(const TensorMap& tensors, std::string_view name, const RunIdentity& run,
                                           size_t max_rows) {
  const auto scores = tensors.find("scores");
  if (scores == tensors.end()) return invalid(fmt::format("{} holds no scores", name));
  for (const auto& [part, value] : run) {
    const auto found = tensors.find(part);
    const bool same = found != tensors.end() && found->second.data.size() == value.size() &&
                      std::memcmp(found->second.data.data(), value.data(), value.size()) == 0;
    if (!same) {
      return invalid(fmt::format("{} belongs to a run that had not the same {}: repeat that run, or name another file",
                                 name, part));
    }
  }
  const TensorView& t = scores->second;
  if (t.dtype != Dtype::kF64 || t.shape.size() != 2 || t.shape[1] != kColumns ||
      static_cast<uint64_t>(t.shape[0]) > max_rows) {
    return invalid(fmt::format("{}: scores is {} [{}], expected F64 [at most {}, {}]", name, dtype_name(t.dtype),
                               fmt::join(t.shape, ", "), max_rows, kColumns));
  }
  std::vector<RowScore> rows(static_cast<size_t>(t.shape[0]));
  if (!rows.empty()) std::memcpy(rows.data(), t.data.data(), t.data.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!possible(rows[i])) return invalid(fmt::format("{}: row {} of the scores is impossible", name, i));
  }
  return rows;
}

}  // namespace calla
