#pragma once

// A model without weights for tests: a byte tokenizer and a runner whose next token is a plain function of the tokens
// before it. It counts the tokens that it reads, so that tests of prefix reuse can say what a turn costs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model.h"
#include "engine/runner.h"
#include "text/pretokenize.h"
#include "text/utf8.h"

namespace calla::fake {

// Ids 0 to 255 are bytes; then the markers that a conversation needs. 320 rows, the last of which are padding.
inline constexpr int32_t kImStart = 256, kImEnd = 257, kEndOfText = 258, kThink = 259, kEndThink = 260;
inline constexpr int kVocab = 320;

inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return out + "\"";
}

// markers: false leaves the bytes alone, for a model with 256 rows.
inline Tokenizer byte_tokenizer(bool with_markers = true) {
  std::string vocab, added;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    std::string c;
    append_utf8(printable ? b : next++, c);
    vocab += fmt::format("{}{}:{}", b > 0 ? "," : "", json_string(c), b);
  }
  const std::pair<const char*, bool> markers[] = {
      {"<|im_start|>", true},  {"<|im_end|>", true},       {"<|endoftext|>", true},
      {"<think>", false},      {"</think>", false},        {"<tool_call>", false},
      {"</tool_call>", false}, {"<tool_response>", false}, {"</tool_response>", false}};
  int32_t id = kImStart;
  for (const auto& [text, special] : markers) {
    if (!with_markers) break;
    added += fmt::format(R"({}{{"id":{},"content":"{}","special":{}}})", id > kImStart ? "," : "", id, text, special);
    ++id;
  }
  std::string pattern;
  for (const char c : std::string_view(kPiecePattern))
    pattern += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  const auto tokenizer = Tokenizer::parse(fmt::format(
      R"({{"added_tokens":[{}],"normalizer":{{"type":"NFC"}},"pre_tokenizer":{{"type":"Sequence","pretokenizers":[)"
      R"({{"type":"Split","pattern":{{"Regex":"{}"}},"behavior":"Isolated"}},{{"type":"ByteLevel","use_regex":false}}]}},)"
      R"("decoder":{{"type":"ByteLevel"}},"model":{{"type":"BPE","vocab":{{{}}},"merges":[]}}}})",
      added, pattern, vocab));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(const_cast<Result<Tokenizer>&>(tokenizer).value());
}

inline std::vector<int32_t> bytes(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

using Next = std::function<int32_t(const std::vector<int32_t>& tokens)>;

class FakeRunner final : public Runner {
 public:
  FakeRunner(Next next, int context, int chunk) : next_(std::move(next)), context_(context), chunk_(chunk) {
    config_.vocab = kVocab;
    config_.max_positions = context;
  }

  const ModelConfig& config() const override { return config_; }
  int context() const override { return context_; }
  int chunk() const override { return chunk_; }
  PageUse pages() const override { return {0, 1 << 20, 1}; }
  size_t state_bytes() const override { return 1; }
  const MemoryPlan& plan() const override { return plan_; }
  Result<std::unique_ptr<Sequence>> start() override { return std::make_unique<Own>(); }

  using Runner::forward;
  Result<std::span<float>> forward(std::span<const Step> steps, Progress progress, void* ctx) override {
    logits_.clear();
    for (const Step& step : steps) {
      auto& s = static_cast<Own&>(*step.sequence);
      if (s.tokens().size() + step.tokens.size() > static_cast<size_t>(context_)) return invalid("context exceeded");
      for (size_t i = 0; i < step.tokens.size(); ++i) {
        s.append(step.tokens[i]);
        ++read;
        const bool last = i + 1 == step.tokens.size();
        if (step.logits == Step::Logits::kAll || (step.logits == Step::Logits::kLast && last))
          add_row(s.tokens(), logits_);
        if (!last && (i + 1) % chunk_ != 0) continue;
        if (progress != nullptr && !progress(ctx, static_cast<int>(i) + 1)) {
          return fail(Error::Code::kCancelled, "cancelled");
        }
      }
    }
    return std::span(logits_);
  }
  Result<std::unique_ptr<Sequence>> fork(const Sequence& sequence) override {
    return std::make_unique<Own>(static_cast<const Own&>(sequence));
  }
  Result<void> restore(Sequence& sequence, const Sequence& snapshot) override {
    static_cast<Own&>(sequence) = static_cast<const Own&>(snapshot);
    return {};
  }
  Result<void> mark(Sequence& sequence) override {
    auto& marks = static_cast<Own&>(sequence).marks;
    std::erase(marks, sequence.position());
    if (marks.size() == 4) marks.erase(marks.begin());
    marks.push_back(sequence.position());
    return {};
  }
  // As the real one: what lies between the newest mark at or before the target is read again.
  Result<void> rollback(Sequence& sequence, int count) override {
    if (count == 0) return {};
    auto& s = static_cast<Own&>(sequence);
    const int target = s.position() - count;
    while (!s.marks.empty() && s.marks.back() > target) s.marks.pop_back();
    read += target - (s.marks.empty() ? 0 : s.marks.back());
    s.cut(target);
    return {};
  }
  Result<void> save(const Sequence&, const std::filesystem::path&) const override { return none(); }
  Result<std::unique_ptr<Sequence>> load(const std::filesystem::path&) override { return none(); }
  Result<std::vector<int32_t>> saved_tokens(const std::filesystem::path&) const override { return none(); }
  std::string state_version() const override { return "fake"; }

  int read = 0;  // tokens that went through the model

 private:
  static tl::unexpected<Error> none() { return fail(Error::Code::kUnsupported, "fake"); }
  struct Own final : Sequence {
    void append(int32_t id) { tokens_.push_back(id); }
    void cut(int position) { tokens_.resize(position); }
    std::vector<int> marks;
  };
  void add_row(const std::vector<int32_t>& tokens, std::vector<float>& logits) {
    const size_t first = logits.size();
    logits.resize(first + kVocab);
    for (int i = 0; i < kVocab; ++i) logits[first + i] = static_cast<float>(i % 7) * 0.1f;
    logits[first + kVocab - 1] = 99;  // padding that must never be chosen
    logits[first + next_(tokens)] = 50;
  }

  ModelConfig config_;
  Next next_;
  int context_, chunk_;
  std::vector<float> logits_;
  MemoryPlan plan_;
};

// The model, and its runner for counting.
struct FakeModel {
  std::unique_ptr<Model> model;
  FakeRunner* runner;
};
inline FakeModel make_model(Next next, int context = 4096, int chunk = 16) {
  auto runner = std::make_unique<FakeRunner>(std::move(next), context, chunk);
  FakeRunner* raw = runner.get();
  return {std::make_unique<Model>(Model::Parts{"fake",
                                               byte_tokenizer(),
                                               ChatTemplate(ChatTemplate::Version::kQwen36),
                                               GenerationConfig{},
                                               {kImEnd, kEndOfText},
                                               std::move(runner)}),
          raw};
}

// Says `script` after a prompt of `prompt` tokens, then ends the turn.
inline Next says(int prompt, std::vector<int32_t> script) {
  return [prompt, script = std::move(script)](const std::vector<int32_t>& tokens) {
    const size_t at = tokens.size() - prompt;
    return at < script.size() ? script[at] : kImEnd;
  };
}

// Answers each turn of a conversation with reply(the user's last text).
inline Next replies(std::function<std::string(const std::string&)> reply) {
  return [reply = std::move(reply)](const std::vector<int32_t>& tokens) -> int32_t {
    const auto header = std::find(tokens.rbegin(), tokens.rend(), kImStart).base();  // after the last <|im_start|>
    const auto before = std::find(std::make_reverse_iterator(header - 1), tokens.rend(), kImStart).base();
    std::string user;
    for (auto it = before + 5; it < header - 1 && *it != kImEnd; ++it) user += static_cast<char>(*it);
    const std::vector<int32_t> opening = bytes("assistant\n");
    std::vector<int32_t> said(header + static_cast<ptrdiff_t>(opening.size()), tokens.end());
    if (!said.empty() && said[0] == kThink) {
      const bool closed = said.size() > 3 && said[1] == '\n' && said[2] == '\n' && said[3] == kEndThink;
      said.erase(said.begin(), said.begin() + (closed ? 6 : 2));  // the part that the prompt has already
    }
    std::vector<int32_t> answer;
    const std::string text = reply(user);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text.compare(i, 8, "</think>") == 0) {
        answer.push_back(kEndThink);
        i += 7;
      } else {
        answer.push_back(static_cast<uint8_t>(text[i]));
      }
    }
    return said.size() < answer.size() ? answer[said.size()] : kImEnd;
  };
}

}  // namespace calla::fake
