#include "engine/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/file.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path hub_cache() {
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface/hub";
  return fs::path(environment("HOME")) / ".cache/huggingface/hub";
}

// "owner/name", each of letters, digits and "-_." and not starting with a dot.
bool is_repository_id(std::string_view spec) {
  const size_t slash = spec.find('/');
  if (slash == std::string_view::npos) return false;
  const auto is_name = [](std::string_view s) {
    return !s.empty() && s[0] != '.' && std::all_of(s.begin(), s.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
             c == '.';
    });
  };
  return is_name(spec.substr(0, slash)) && is_name(spec.substr(slash + 1));
}

// models--owner--name/refs/main names the snapshot; without it, the only snapshot there is.
fs::path cached_snapshot(std::string_view id, const fs::path& cache) {
  std::string folder = "models--" + std::string(id);
  folder.replace(folder.find('/'), 1, "--");
  const fs::path snapshots = cache / folder / "snapshots";
  if (auto ref = read_file(cache / folder / "refs/main", 200)) {
    while (!ref->empty() && (ref->back() == '\n' || ref->back() == ' ')) ref->pop_back();
    if (!ref->empty() && ref->find('/') == std::string::npos) return snapshots / *ref;
  }
  std::error_code error;
  std::vector<fs::path> all;
  for (fs::directory_iterator it(snapshots, error), end; !error && it != end; it.increment(error))
    all.push_back(it->path());
  return all.size() == 1 ? all[0] : fs::path();
}

}  // namespace

Result<fs::path> find_model(std::string_view spec) {
  const fs::path path(spec);
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (fs::exists(path / "config.json", ignored)) return path;
    return fail(Error::Code::kNotFound, fmt::format("{} holds no config.json: --model wants the folder of a model, "
                                                    "with config.json, tokenizer.json and *.safetensors",
                                                    path.string()));
  }
  if (fs::exists(path, ignored))
    return invalid(fmt::format("{} is a file: --model wants the folder of a model", path.string()));
  if (!is_repository_id(spec)) {
    return fail(Error::Code::kNotFound, fmt::format("there is no folder {} (a model is a folder, or an id such as "
                                                    "mlx-community/Qwen3.6-35B-A3B-4bit)",
                                                    path.string()));
  }
  const fs::path cache = hub_cache();
  const fs::path snapshot = cached_snapshot(spec, cache);
  if (!snapshot.empty() && fs::exists(snapshot / "config.json", ignored)) return snapshot;
  return fail(Error::Code::kNotFound, fmt::format("{0} is neither a folder nor in the Hugging Face cache {1}: "
                                                  "get it with `hf download {0}`",
                                                  spec, cache.string()));
}

}  // namespace calla
