#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "tests/engine/fake.h"

namespace calla {
namespace {

using namespace fake;  // NOLINT

using Tokens = std::vector<int32_t>;

class PrefixCacheTest : public testing::Test {
 protected:
  std::unique_ptr<Sequence> at(const Tokens& tokens) {
    auto s = runner_.start().value();
    const Step step{s.get(), tokens, Step::Logits::kNone};
    std::vector<float> none;
    EXPECT_TRUE(runner_.forward({&step, 1}, none, nullptr, nullptr));
    return s;
  }
  static bool begins(const Tokens& whole, const Tokens& part) {
    return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
  }
  static size_t common(const Tokens& a, const Tokens& b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  }
  FakeRunner runner_{says(0, {}), 4096, 16};
};

// Against a list that is searched from one end to the other.
TEST_F(PrefixCacheTest, FindsWhatAListFinds) {
  Random random(7);
  for (int round = 0; round < 30; ++round) {
    PrefixCache cache(runner_, 1 << 20);
    std::vector<std::pair<Tokens, bool>> list;  // with logits or without
    const auto tokens = [&] {                   // few different ones, so that paths meet
      Tokens t(1 + random.next() % 12);
      for (int32_t& id : t) id = static_cast<int32_t>(random.next() % 2);
      return t;
    };
    for (int i = 0; i < 60; ++i) {
      const Tokens put = tokens();
      const bool logits = random.next() % 2 == 0;
      cache.put(at(put), logits ? std::vector<float>{1, 2} : std::vector<float>{}, false);
      const auto same = std::ranges::find(list, put, &std::pair<Tokens, bool>::first);
      if (same == list.end()) {
        list.emplace_back(put, logits);
      } else {
        same->second |= logits;
      }
      EXPECT_EQ(cache.count(), static_cast<int>(list.size()));
      const Tokens prompt = tokens();
      size_t best = 0, known = 0;
      for (const auto& [t, l] : list) {
        known = std::max(known, common(t, prompt));
        if (begins(prompt, t) && (t.size() < prompt.size() || l)) best = std::max(best, t.size());
      }
      const PrefixCache::Hit hit = cache.find(prompt);
      EXPECT_EQ(hit.snapshot == nullptr ? 0 : hit.snapshot->tokens().size(), best);
      EXPECT_EQ(cache.depth(prompt), static_cast<int>(best));
      EXPECT_EQ(hit.known, static_cast<int>(known));
      EXPECT_EQ(hit.logits.empty(), best < prompt.size());
      EXPECT_EQ(cache.has(prompt), std::ranges::count(list, prompt, &std::pair<Tokens, bool>::first) == 1);
      EXPECT_TRUE(hit.snapshot == nullptr || begins(prompt, hit.snapshot->tokens()));
      // What stands in place of the prompt's next tokens is the continuation of some snapshot.
      if (!hit.instead.empty()) {
        Tokens path(prompt.begin(), prompt.begin() + hit.known);
        path.insert(path.end(), hit.instead.begin(), hit.instead.end());
        EXPECT_TRUE(std::ranges::any_of(list, [&](const auto& e) { return begins(e.first, path); }));
        EXPECT_NE(hit.instead[0], prompt[hit.known]);
      }
    }
  }
}

// With everything dropped again, in any order, nothing is left.
TEST_F(PrefixCacheTest, GivesAllBack) {
  PrefixCache cache(runner_, 1 << 20);
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    Tokens t(1 + random.next() % 20);
    for (int32_t& id : t) id = static_cast<int32_t>(random.next() % 3);
    cache.put(at(t), {}, i % 5 == 0);
  }
  const int count = cache.count();
  for (int i = 0; i < count; ++i) EXPECT_TRUE(cache.make_room());
  EXPECT_FALSE(cache.make_room());
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(cache.find(Tokens{0, 1, 2}).known, 0) << "the tree is empty";
}

// A snapshot costs its tokens and one byte here.
TEST_F(PrefixCacheTest, KeepsItsBudgetAndWhatIsWorthMost) {
  PrefixCache cache(runner_, 2000);
  const Tokens preamble(100, 'p');
  cache.put(at(preamble), {}, false);
  for (int i = 0; i < 50; ++i) {  // small steps beside it
    Tokens t{i, i, i, i};
    cache.put(at(t), {}, false);
    EXPECT_LE(cache.bytes(), 2000u);
  }
  EXPECT_TRUE(cache.has(preamble)) << "reading it again would cost most";
  for (int i = 0; i < 3000; ++i) cache.put(at(Tokens{i % 100, i / 100, 1, 2}), {}, false);
  EXPECT_FALSE(cache.has(preamble)) << "but not for ever";
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirst) {
  PrefixCache cache(runner_, 3 * 17);  // three snapshots of four tokens
  const Tokens a{1, 1, 1, 1}, b{2, 2, 2, 2}, c{3, 3, 3, 3}, d{4, 4, 4, 4};
  for (const Tokens& t : {a, b, c}) cache.put(at(t), {}, false);
  Tokens prompt = a;
  prompt.push_back(9);
  ASSERT_NE(cache.find(prompt).snapshot, nullptr);
  cache.put(at(d), {}, false);
  EXPECT_FALSE(cache.has(b));
  for (const Tokens& t : {a, c, d}) EXPECT_TRUE(cache.has(t));
}

TEST_F(PrefixCacheTest, SideRequestsTakeNobodysPlace) {
  PrefixCache cache(runner_, 3 * 17);
  const Tokens a{1, 1, 1, 1}, b{2, 2, 2, 2};
  cache.put(at(a), {}, false);
  cache.put(at(b), {}, false);
  for (int i = 10; i < 30; ++i) {
    cache.put(at(Tokens{i, i, i, i}), {}, true);
    EXPECT_TRUE(cache.has(Tokens{i, i, i, i})) << "there is room for one";
  }
  EXPECT_TRUE(cache.has(a) && cache.has(b));
  cache.put(at(Tokens{3, 3, 3, 3}), {}, false);
  EXPECT_TRUE(cache.has(a) && cache.has(b) && cache.has(Tokens{3, 3, 3, 3})) << "the side request's went";
  cache.put(at(Tokens{5, 5, 5, 5}), {}, true);
  EXPECT_FALSE(cache.has(Tokens{5, 5, 5, 5}));
  EXPECT_EQ(cache.count(), 3);
}

}  // namespace
}  // namespace calla
