#include "convert/byte_tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "text/pretokenize.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

struct Control {
  std::string_view text;
  bool special;
};
// In the order of their ids (facts of the tokenizer: docs/formats.md).
constexpr std::array<Control, kControlTokens> kControls{{
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
}};

std::string utf8(uint32_t c) {  // c < 0x800
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

// GPT-2's spelling of bytes: printable Latin-1 stands for itself and comes first, the other 68 bytes are U+0100 onward.
std::vector<std::string> byte_spellings() {
  const auto printable = [](uint32_t b) { return (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad); };
  std::vector<std::string> spellings;
  for (uint32_t b = 0; b < 256; ++b) {
    if (printable(b)) spellings.push_back(utf8(b));
  }
  const auto others = static_cast<uint32_t>(256 - spellings.size());
  for (uint32_t i = 0; i < others; ++i) spellings.push_back(utf8(0x100 + i));
  return spellings;
}

}  // namespace

int32_t first_control_id(int vocab) {
  constexpr int32_t kQwen = 248044;
  return vocab >= kQwen + kControlTokens ? kQwen : 256;
}

std::string byte_tokenizer_json(int32_t first_control) {
  Json vocab = Json::object(), added = Json::array();
  int32_t id = 0;
  for (const std::string& spelling : byte_spellings()) vocab[spelling] = id++;
  for (int i = 0; i < kControlTokens; ++i) {
    added.push_back({{"id", first_control + i},
                     {"content", kControls[i].text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", kControls[i].special}});
  }
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kPiecePattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", {{"type", "NFC"}}},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}}},
                     {"post_processor", bytes},
                     {"decoder", bytes},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", ""},
                       {"end_of_word_suffix", ""},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", Json::array()}}}};
  return root.dump(1) + "\n";
}

}  // namespace calla
