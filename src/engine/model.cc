#include "engine/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "text/chat_json.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 << 20;

// The file's text, or "" where there is no such file.
Result<std::string> read_optional(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::string();
  return read_file(path, kMaxConfigBytes);
}

Result<GenerationConfig> load_generation(const fs::path& dir) {
  CALLA_ASSIGN(const std::string text, read_optional(dir / "generation_config.json"));
  if (text.empty()) return GenerationConfig{};
  Result<GenerationConfig> config = parse_generation_config(text);
  if (!config) {
    return fail(config.error().code,
                fmt::format("{}: {}", (dir / "generation_config.json").string(), config.error().message));
  }
  return config;
}

// "eos_token" of tokenizer_config.json: a string, or an object with "content".
Result<std::optional<int32_t>> tokenizer_eos(const fs::path& dir, const Tokenizer& tokenizer) {
  CALLA_ASSIGN(const std::string text, read_optional(dir / "tokenizer_config.json"));
  if (text.empty()) return std::nullopt;
  const auto json = parse_json(text);
  if (!json) return invalid(fmt::format("{}: {}", (dir / "tokenizer_config.json").string(), json.error().message));
  if (!json->is_object() || !json->contains("eos_token")) return std::nullopt;
  const nlohmann::ordered_json* eos = &(*json)["eos_token"];
  if (eos->is_object() && eos->contains("content")) eos = &(*eos)["content"];
  if (!eos->is_string()) return std::nullopt;
  return tokenizer.control_id(eos->get_ref<const std::string&>());
}

}  // namespace

Model::Model(Parts parts) : parts_(std::move(parts)) {
  std::sort(parts_.stop_ids.begin(), parts_.stop_ids.end());
  parts_.stop_ids.erase(std::unique(parts_.stop_ids.begin(), parts_.stop_ids.end()), parts_.stop_ids.end());
}

Result<std::unique_ptr<Model>> Model::open(const fs::path& dir, RunnerOptions options) {
  if (options.context == 0) {
    CALLA_ASSIGN(const std::string text, read_file(dir / "config.json", kMaxConfigBytes));
    const auto config = parse_config(text);
    // A bad config is open_runner's to report.
    options.context = config && config->max_positions > 0 ? std::min(kDefaultContext, config->max_positions) : 1;
  }
  CALLA_ASSIGN(auto runner, open_runner(dir, options));
  CALLA_ASSIGN(Tokenizer tokenizer, Tokenizer::load(dir));
  if (tokenizer.size() > runner->config().vocab) {
    return invalid(fmt::format("{}: the tokenizer has {} ids and the model {}: they do not belong together",
                               dir.string(), tokenizer.size(), runner->config().vocab));
  }
  CALLA_ASSIGN(GenerationConfig generation, load_generation(dir));
  CALLA_ASSIGN(const std::optional<int32_t> eos, tokenizer_eos(dir, tokenizer));
  std::vector<int32_t> stop_ids = runner->config().eos;
  stop_ids.insert(stop_ids.end(), generation.eos.begin(), generation.eos.end());
  if (eos) stop_ids.push_back(*eos);
  const fs::path folder = dir.has_filename() ? dir : dir.parent_path();
  return std::make_unique<Model>(Parts{folder.filename().string(), std::move(tokenizer), ChatTemplate::load(dir),
                                       std::move(generation), std::move(stop_ids), std::move(runner)});
}

bool Model::is_stop(int32_t id) const {
  return std::binary_search(parts_.stop_ids.begin(), parts_.stop_ids.end(), id);
}

Result<std::vector<int32_t>> Model::encode(const Conversation& conversation) const {
  if (!parts_.chat_template) return tl::unexpected<Error>(parts_.chat_template.error());
  CALLA_ASSIGN(const Prompt prompt, parts_.chat_template->render(conversation));
  return parts_.tokenizer.encode(prompt);
}

int Model::last_turn(std::span<const int32_t> prompt) const {
  const std::optional<int32_t> header = parts_.tokenizer.control_id("<|im_start|>");
  if (!header) return 0;
  const auto it = std::find(prompt.rbegin(), prompt.rend(), *header);
  return it == prompt.rend() ? 0 : static_cast<int>(prompt.rend() - it) - 1;
}

bool Model::ends_in_reasoning(std::span<const int32_t> prompt) const {
  const auto open = parts_.tokenizer.control_id("<think>"), close = parts_.tokenizer.control_id("</think>");
  for (auto it = prompt.rbegin(); open && it != prompt.rend(); ++it) {
    if (*it == *open) return true;
    if (close && *it == *close) return false;
  }
  return false;
}

}  // namespace calla
