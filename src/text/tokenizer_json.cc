// Reads tokenizer.json and tokenizer_config.json as Hugging Face writes them. Everything that changes how text becomes
// ids is checked: what this code does not do is refused, never ignored.

#include <fmt/format.h>
#include <simdjson.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "base/file.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace calla {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr uint64_t kMaxFile = uint64_t{1} << 28;
constexpr auto kMaxIds = static_cast<uint64_t>(Bpe::kMaxIds);

// tokenizer.json writes each byte of a token as one printable character (GPT-2's map): the printable characters of
// Latin-1 stand for themselves, the other bytes for U+0100 and up, in order. Here the way back: code point → byte, or
// -1.
constexpr auto kByteOfChar = [] {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  size_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes[printable ? static_cast<size_t>(b) : next++] = static_cast<int16_t>(b);
  }
  return bytes;
}();

// Appends the bytes that a token's spelling stands for; false if it has a character that stands for none.
// REQUIRES: valid UTF-8 (simdjson gives no other).
bool append_token_bytes(std::string_view spelling, std::string& out) {
  for (size_t i = 0; i < spelling.size(); i += utf8_length(spelling[i])) {
    const uint32_t c = utf8_at(spelling.data() + i);
    if (c >= kByteOfChar.size() || kByteOfChar[c] < 0) return false;
    out += static_cast<char>(kByteOfChar[c]);
  }
  return true;
}

// A string from the file for a message: as JSON in ASCII, so that it is one line and harmless on a terminal; long ones
// are cut.
std::string in_quotes(std::string_view s) {
  constexpr size_t kLimit = 80;
  const nlohmann::json json(s.substr(0, kLimit));
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         (s.size() > kLimit ? "…" : "");
}

template <class T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<object> = "an object";
template <>
constexpr const char* kTypeName<array> = "an array";
template <>
constexpr const char* kTypeName<std::string_view> = "a string";
template <>
constexpr const char* kTypeName<bool> = "true or false";

// An element and where it stands, for error messages: "tokenizer.json: model.vocab".
struct Node {
  element value;
  std::string path;

  tl::unexpected<Error> error(std::string_view what) const { return invalid(fmt::format("{} {}", path, what)); }

  template <class T>
  Result<T> get() const {
    T out;
    if (value.get(out) != simdjson::SUCCESS) return error(fmt::format("must be {}", kTypeName<T>));
    return out;
  }
  std::string child_path(std::string_view key) const {
    return fmt::format("{}{}{}", path, path.ends_with(':') ? " " : ".", key);
  }
  // The field `key` of an object, or an error if it is absent.
  Result<Node> at(std::string_view key) const {
    CALLA_ASSIGN(const object o, get<object>());
    element child;
    if (o.at_key(key).get(child) != simdjson::SUCCESS) return invalid(fmt::format("{} is missing", child_path(key)));
    return Node{child, child_path(key)};
  }
  // The same, but nullopt if it is absent or null.
  Result<std::optional<Node>> find(std::string_view key) const {
    CALLA_ASSIGN(const object o, get<object>());
    element child;
    if (o.at_key(key).get(child) != simdjson::SUCCESS || child.is_null()) return std::nullopt;
    return Node{child, child_path(key)};
  }
  // An absent or null flag is false.
  Result<bool> flag(std::string_view key) const {
    CALLA_ASSIGN(const std::optional<Node> child, find(key));
    return child ? child->get<bool>() : false;
  }
  // Fails unless the flag is false: true would change the ids in a way that this tokenizer does not implement.
  Result<void> must_be_off(std::string_view key) const {
    CALLA_ASSIGN(const bool on, flag(key));
    if (on) return Node{value, child_path(key)}.error("is true, which is not supported");
    return {};
  }
  Result<void> type_must_be(std::string_view expected) const {
    CALLA_ASSIGN(const Node type, at("type"));
    CALLA_ASSIGN(const std::string_view name, type.get<std::string_view>());
    if (name != expected) return type.error(fmt::format("is {}; only \"{}\" is supported", in_quotes(name), expected));
    return {};
  }
  Result<int32_t> id() const {
    uint64_t out = 0;
    if (value.get(out) != simdjson::SUCCESS || out >= kMaxIds) {
      return error(fmt::format("must be a token id from 0 to {}", kMaxIds - 1));
    }
    return static_cast<int32_t>(out);
  }
};

Result<Node> parse_json(simdjson::dom::parser& parser, std::string_view json, std::string name) {
  if (json.size() > kMaxFile) return invalid(fmt::format("{} has more than {} bytes", name, kMaxFile));
  element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return invalid(fmt::format("{} is not valid JSON ({})", name, simdjson::error_message(error)));
  }
  return Node{root, name + ":"};
}

// The steps before and after BPE: all of them fixed, so they are only compared with what this code does.
Result<void> check_steps(const Node& root) {
  CALLA_ASSIGN(const Node normalizer, root.at("normalizer"));
  CALLA_TRY(normalizer.type_must_be("NFC"));

  CALLA_ASSIGN(const Node pre, root.at("pre_tokenizer"));
  CALLA_TRY(pre.type_must_be("Sequence"));
  CALLA_ASSIGN(const Node steps, pre.at("pretokenizers"));
  CALLA_ASSIGN(const array list, steps.get<array>());
  if (list.size() != 2) return steps.error("must be Split, then ByteLevel");
  const Node split{list.at(0).value_unsafe(), steps.path + "[0]"};
  CALLA_TRY(split.type_must_be("Split"));
  CALLA_ASSIGN(const Node pattern, split.at("pattern"));
  CALLA_ASSIGN(const Node regex, pattern.at("Regex"));
  CALLA_ASSIGN(const std::string_view text, regex.get<std::string_view>());
  if (text != kPiecePattern)
    return regex.error("is not the pattern of Qwen3.5 and 3.6, the only one that is supported");
  CALLA_ASSIGN(const Node behavior, split.at("behavior"));
  CALLA_ASSIGN(const std::string_view isolated, behavior.get<std::string_view>());
  if (isolated != "Isolated") return behavior.error("must be \"Isolated\"");
  CALLA_TRY(split.must_be_off("invert"));

  const Node bytes{list.at(1).value_unsafe(), steps.path + "[1]"};
  CALLA_TRY(bytes.type_must_be("ByteLevel"));
  CALLA_TRY(bytes.must_be_off("add_prefix_space"));
  CALLA_ASSIGN(const Node use_regex, bytes.at("use_regex"));  // absent means true
  CALLA_TRY(bytes.must_be_off("use_regex"));

  CALLA_ASSIGN(const std::optional<Node> post, root.find("post_processor"));
  if (post) CALLA_TRY(post->type_must_be("ByteLevel"));  // moves offsets only
  CALLA_ASSIGN(const Node decoder, root.at("decoder"));
  return decoder.type_must_be("ByteLevel");
}

}  // namespace

class TokenizerReader {
 public:
  Result<Tokenizer> read(std::string_view json, std::string_view config) {
    simdjson::dom::parser parser;
    CALLA_ASSIGN(const Node root, parse_json(parser, json, "tokenizer.json"));
    CALLA_TRY(check_steps(root));
    CALLA_ASSIGN(const Node model, root.at("model"));
    CALLA_TRY(check_model(model));
    CALLA_ASSIGN(const Node vocab, model.at("vocab"));
    CALLA_ASSIGN(const object entries, vocab.get<object>());
    if (entries.size() > kMaxIds) return vocab.error(fmt::format("has more than {} entries", kMaxIds));
    t_.vocab_.reserve(entries.size(), 8 * entries.size());
    CALLA_TRY(read_controls(root));
    if (!config.empty()) CALLA_TRY(read_config(config));
    CALLA_TRY(read_vocab(vocab, entries));
    CALLA_TRY(read_merges(model, vocab));
    t_.kinds_.resize(static_cast<size_t>(t_.size()));
    t_.whole_ = std::vector<std::atomic<Tokenizer::Whole>>(static_cast<size_t>(t_.size()));
    std::stable_sort(t_.controls_.begin(), t_.controls_.end(),
                     [&](int32_t a, int32_t b) { return t_.bytes(a).size() > t_.bytes(b).size(); });
    return std::move(t_);
  }

 private:
  static Result<void> check_model(const Node& model) {
    CALLA_TRY(model.type_must_be("BPE"));
    CALLA_TRY(model.must_be_off("byte_fallback"));
    CALLA_TRY(model.must_be_off("ignore_merges"));
    CALLA_ASSIGN(const std::optional<Node> dropout, model.find("dropout"));
    if (dropout) return dropout->error("must be null");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      CALLA_ASSIGN(const std::optional<Node> affix, model.find(key));
      if (!affix) continue;
      CALLA_ASSIGN(const std::string_view text, affix->get<std::string_view>());
      if (!text.empty()) return affix->error("must be empty or null");
    }
    return {};
  }

  Result<void> read_controls(const Node& root) {
    CALLA_ASSIGN(const std::optional<Node> added, root.find("added_tokens"));
    if (!added) return {};
    CALLA_ASSIGN(const array list, added->get<array>());
    size_t i = 0;
    for (const element e : list) {
      const Node token{e, fmt::format("{}[{}]", added->path, i++)};
      CALLA_ASSIGN(const Node id_node, token.at("id"));
      CALLA_ASSIGN(const int32_t id, id_node.id());
      CALLA_TRY(add_control(token, id));
    }
    return {};
  }

  // The added tokens of tokenizer_config.json: normally the same again.
  Result<void> read_config(std::string_view config) {
    simdjson::dom::parser parser;
    CALLA_ASSIGN(const Node root, parse_json(parser, config, "tokenizer_config.json"));
    CALLA_ASSIGN(const std::optional<Node> added, root.find("added_tokens_decoder"));
    if (!added) return {};
    CALLA_ASSIGN(const object entries, added->get<object>());
    for (const auto [key, value] : entries) {
      const Node token{value, added->child_path(in_quotes(key))};
      int32_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || static_cast<uint64_t>(id) >= kMaxIds) {
        return token.error(fmt::format("must be named by a token id from 0 to {}", kMaxIds - 1));
      }
      CALLA_ASSIGN(const Node content, token.at("content"));
      CALLA_ASSIGN(const std::string_view text, content.get<std::string_view>());
      CALLA_ASSIGN(const bool special, token.flag("special"));
      const auto kind = special ? Tokenizer::Kind::kSpecial : Tokenizer::Kind::kControl;
      if (t_.control_id(text) == id && t_.kind(id) == kind) continue;
      CALLA_TRY(add_control(token, id));
    }
    return {};
  }

  Result<void> add_control(const Node& token, int32_t id) {
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) CALLA_TRY(token.must_be_off(key));
    CALLA_ASSIGN(const bool special, token.flag("special"));
    CALLA_ASSIGN(const Node content, token.at("content"));
    CALLA_ASSIGN(const std::string_view text, content.get<std::string_view>());
    if (text.empty()) return content.error("is empty");
    if (t_.control_id(text)) return content.error(fmt::format("{} is defined before, differently", in_quotes(text)));
    if (!t_.vocab_.add_hidden(id, text)) return token.error(fmt::format("has the id {}, which is taken", id));
    t_.controls_.push_back(id);
    t_.kinds_.resize(std::max(t_.kinds_.size(), static_cast<size_t>(id) + 1));
    t_.kinds_[static_cast<size_t>(id)] = special ? Tokenizer::Kind::kSpecial : Tokenizer::Kind::kControl;
    return {};
  }

  Result<void> read_vocab(const Node& vocab, const object& entries) {
    for (const auto [key, value] : entries) {
      const auto error = [&, k = key](std::string_view what) {
        return vocab.error(fmt::format("gives the token {} {}", in_quotes(k), what));
      };
      uint64_t id = 0;
      if (value.get(id) != simdjson::SUCCESS || id >= kMaxIds) {
        return error(fmt::format("an id that is not a number from 0 to {}", kMaxIds - 1));
      }
      const auto id32 = static_cast<int32_t>(id);
      if (t_.is_control(id32) && t_.bytes(id32) == key) continue;  // the trainer of some tokenizers lists them twice
      bytes_.clear();
      if (!append_token_bytes(key, bytes_)) return error("characters that stand for no byte");
      if (bytes_.empty() || !t_.vocab_.add(id32, bytes_)) {
        return error(fmt::format("the id {}, but the id or the token is taken or empty", id));
      }
    }
    for (const int32_t id : t_.controls_) {
      if (t_.vocab_.find(t_.bytes(id)) != Vocab::kNone) {
        return vocab.error(fmt::format("gives the added token {} another id", in_quotes(t_.bytes(id))));
      }
    }
    return {};
  }

  Result<void> read_merges(const Node& model, const Node& vocab) {
    std::array<int32_t, 256> byte_ids{};
    for (size_t b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      byte_ids[b] = t_.vocab_.find({&byte, 1});
      if (byte_ids[b] == Vocab::kNone) return vocab.error(fmt::format("has no token for the byte 0x{:02x}", b));
    }
    CALLA_ASSIGN(const Node node, model.at("merges"));
    CALLA_ASSIGN(const array list, node.get<array>());
    if (list.size() > Bpe::kMaxMerges) return node.error(fmt::format("has more than {} entries", Bpe::kMaxMerges));
    std::vector<Bpe::Merge> merges;
    merges.reserve(list.size());
    for (const element e : list) {
      Result<Bpe::Merge> merge = read_merge(e);
      if (!merge) return invalid(fmt::format("{}[{}] {}", node.path, merges.size(), merge.error().message));
      merges.push_back(*merge);
    }
    auto bpe = Bpe::make(byte_ids, merges);
    if (!bpe) return invalid(fmt::format("{}[{}] repeats an earlier merge", node.path, bpe.error()));
    t_.bpe_ = std::move(*bpe);
    return {};
  }

  // The error's message lacks the place.
  Result<Bpe::Merge> read_merge(element e) {
    std::string_view left, right;
    if (!split_merge(e, left, right)) return invalid("must be two tokens, as \"a b\" or [\"a\", \"b\"]");
    bytes_.clear();
    const bool left_ok = append_token_bytes(left, bytes_);
    const size_t middle = bytes_.size();
    const bool right_ok = append_token_bytes(right, bytes_);
    const std::string_view all = bytes_;
    const int32_t left_id = left_ok ? t_.vocab_.find(all.substr(0, middle)) : Vocab::kNone;
    const int32_t right_id = right_ok ? t_.vocab_.find(all.substr(middle)) : Vocab::kNone;
    // Tokens are normally listed in the order of their merges, so the next id is the first guess.
    const int32_t guess = last_merged_ + 1;
    const int32_t merged = t_.bytes(guess) == all && !t_.is_control(guess) ? guess : t_.vocab_.find(all);
    if (left_id == Vocab::kNone) return invalid(fmt::format("has {}, which is not in the vocabulary", in_quotes(left)));
    if (right_id == Vocab::kNone)
      return invalid(fmt::format("has {}, which is not in the vocabulary", in_quotes(right)));
    if (merged == Vocab::kNone)
      return invalid(fmt::format("makes {}, which is not in the vocabulary", in_quotes(std::string(left) += right)));
    last_merged_ = merged;
    return Bpe::Merge{left_id, right_id, merged};
  }

  static bool split_merge(element e, std::string_view& left, std::string_view& right) {
    if (std::string_view both; e.get(both) == simdjson::SUCCESS) {
      const size_t space = both.find(' ');
      if (space == std::string_view::npos) return false;
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      array pair;
      if (e.get(pair) != simdjson::SUCCESS || pair.size() != 2) return false;
      if (pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) return false;
    }
    return !left.empty() && !right.empty();
  }

  Tokenizer t_;
  std::string bytes_;  // scratch
  int32_t last_merged_ = -1;
};

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config) {
  return TokenizerReader().read(tokenizer_json, tokenizer_config);
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& dir) {
  CALLA_ASSIGN(const MappedFile json, MappedFile::open(dir / "tokenizer.json"));
  std::string config;
  if (auto file = read_file(dir / "tokenizer_config.json", kMaxFile)) {
    config = std::move(*file);
  } else if (file.error().code != Error::Code::kNotFound) {
    return tl::unexpected<Error>(std::move(file).error());
  }
  Result<Tokenizer> tokenizer =
      parse({reinterpret_cast<const char*>(json.bytes().data()), json.bytes().size()}, config);
  if (!tokenizer) return fail(tokenizer.error().code, fmt::format("{}/{}", dir.string(), tokenizer.error().message));
  return tokenizer;
}

}  // namespace calla
