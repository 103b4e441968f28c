#include "store/conversations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <rapidcheck/gtest.h>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

ConversationChange change_of(const std::string& json) {
  auto change = read_change(json);
  EXPECT_TRUE(change) << change.error().message;
  return std::move(*change);
}

ConversationChange message(const std::string& id, const std::string& parent, const std::string& content) {
  ConversationChange change;
  change.messages.push_back({id, parent, "user", fmt::format(R"({{"id": "{}"}})", id), content});
  change.leaf = id;
  return change;
}

std::vector<std::string> ids(const Result<std::vector<ConversationSummary>>& list) {
  EXPECT_TRUE(list) << list.error().message;
  std::vector<std::string> out;
  for (const auto& summary : *list) out.push_back(summary.id);
  return out;
}

using Ids = std::vector<std::string>;

class Conversations : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = ConversationStore::open(file_);
    ASSERT_TRUE(opened) << opened.error().message;
    store_.emplace(std::move(*opened));
  }
  ScratchDir folder_;
  std::filesystem::path file_ = folder_ / "a/b/conversations.db";
  std::optional<ConversationStore> store_;
};

TEST_F(Conversations, KeepWhatWasPutAcrossARestart) {
  const auto summary =
      store_->put("c", change_of(R"({"title": "Kites", "leaf": "b", "settings": {"top_k": 20}, "messages": [
      {"id": "a", "role": "user", "content": "Größe?"}, {"id": "b", "parent": "a", "role": "assistant", "content": "x\u0000y"}]})"));
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->title, "Kites");
  EXPECT_GT(summary->created, 1'700'000'000'000);
  store_.reset();
  SetUp();
  const auto back = store_->get("c");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->summary.title, "Kites");
  EXPECT_EQ(back->summary.updated, summary->updated);
  EXPECT_EQ(back->leaf, "b");
  EXPECT_EQ(back->settings, R"({"top_k": 20})");
  ASSERT_EQ(back->messages.size(), 2u);
  EXPECT_EQ(back->messages[0].text, "Größe?");
  EXPECT_EQ(back->messages[1].parent, "a");
  EXPECT_EQ(back->messages[1].text, std::string("x\0y", 3));
  EXPECT_EQ(back->messages[1].json, R"({"id": "b", "parent": "a", "role": "assistant", "content": "x\u0000y"})");
}

TEST_F(Conversations, AreReadableByTheirOwnerOnly) {
  ASSERT_TRUE(store_->put("c", {}));
  for (const char* suffix : {"", "-wal", "-shm"}) {
    struct stat st {};
    ASSERT_EQ(::stat((file_.string() + suffix).c_str(), &st), 0) << suffix;
    EXPECT_EQ(st.st_mode & 0777, 0600u) << suffix;
  }
}

TEST_F(Conversations, MergeTheMessagesOfTwoWindows) {
  auto other = ConversationStore::open(file_);
  ASSERT_TRUE(other) << other.error().message;
  ASSERT_TRUE(store_->put("c", message("a", "", "question")));
  ASSERT_TRUE(store_->put("c", message("b", "a", "one answer")));
  ASSERT_TRUE(other->put("c", message("c", "a", "another answer")));
  ASSERT_TRUE(store_->put("c", message("b", "a", "one answer, longer")));
  const auto back = other->get("c");
  ASSERT_TRUE(back);
  ASSERT_EQ(back->messages.size(), 3u);
  EXPECT_EQ(back->messages[1].text, "one answer, longer");
  EXPECT_EQ(back->messages[2].text, "another answer");
  EXPECT_EQ(back->leaf, "b");
}

TEST_F(Conversations, RefuseWhatIsNotATree) {
  ASSERT_TRUE(store_->put("c", message("a", "", "question")));
  ASSERT_TRUE(store_->put("c", message("b", "a", "answer")));
  const auto refuse = [&](const ConversationChange& change, const std::string& words) {
    const auto result = store_->put("c", change);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Error::Code::kInvalid);
    EXPECT_EQ(result.error().message, words);
  };
  refuse(message("x", "nobody", ""), "messages[0].parent: there is no message nobody before it");
  refuse(message("x", "x", ""), "messages[0].parent: there is no message x before it");
  refuse(message("a", "b", ""), "messages[0]: the parent of a is \"\" and cannot become \"b\"");
  ConversationChange leaf;
  leaf.title = "new title";
  leaf.leaf = "nobody";
  refuse(leaf, "leaf: there is no message nobody");
  EXPECT_EQ(store_->get("c")->summary.title, "New conversation") << "a refused change must change nothing";
  EXPECT_EQ(store_->put("../x", {}).error().code, Error::Code::kInvalid);
  ConversationChange many;
  for (size_t i = 0; i < kMaxMessages; ++i) many.messages.push_back({fmt::format("m{}", i), "a", "user", "{}", ""});
  refuse(many, "the conversation would have 20002 messages, more than the limit of 20000");
  EXPECT_EQ(store_->get("c")->messages.size(), 2u);
}

TEST_F(Conversations, ListNewestFirstInPages) {
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(store_->put(fmt::format("c{}", i), {}));
  ASSERT_TRUE(store_->put("c2", message("a", "", "again")));
  ASSERT_TRUE(store_->rename("c0", "renamed"));
  Ids all;
  int64_t before = INT64_MAX;
  for (;;) {
    const auto page = store_->list("", 3, before);
    ASSERT_TRUE(page);
    if (page->empty()) break;
    for (const auto& summary : *page) all.push_back(summary.id);
    before = page->back().updated;
  }
  EXPECT_EQ(all, (Ids{"c2", "c6", "c5", "c4", "c3", "c1", "c0"}));
}

TEST_F(Conversations, SearchTitlesAndTexts) {
  ASSERT_TRUE(store_->put("title", change_of(R"({"title": "Red Kites"})")));
  ASSERT_TRUE(
      store_->put("long", message("a", "", std::string(500, 'x') + "\n the kite's   string " + std::string(500, 'y'))));
  ASSERT_TRUE(store_->put("german", message("a", "", "ÄRGER mit Größe 100% \"so\"")));
  ASSERT_TRUE(store_->put("chinese", message("a", "", "今天天气很好")));
  ASSERT_TRUE(store_->put("two", message("a", "", "a red thing")));
  ASSERT_TRUE(store_->put("two", message("b", "a", "and a kite")));
  EXPECT_EQ(ids(store_->list("kite", 9)), (Ids{"two", "long", "title"}));
  EXPECT_EQ(ids(store_->list("KITES", 9)), (Ids{"title"}));
  EXPECT_EQ(ids(store_->list("red kite", 9)), (Ids{"title"})) << "all words in one place";
  EXPECT_EQ(ids(store_->list("kite  string", 9)), (Ids{"long"}));
  EXPECT_EQ(ids(store_->list("ärger", 9)), (Ids{"german"}));
  EXPECT_EQ(ids(store_->list("天气很", 9)), (Ids{"chinese"}));
  EXPECT_EQ(ids(store_->list("天气", 9)), (Ids{"chinese"}));
  EXPECT_EQ(ids(store_->list("0%", 9)), (Ids{"german"}));
  EXPECT_EQ(ids(store_->list("%", 9)), (Ids{"german"}));
  EXPECT_EQ(ids(store_->list("_", 9)), Ids{});
  EXPECT_EQ(ids(store_->list("kite", 1)), (Ids{"two"}));
  EXPECT_EQ(ids(store_->list(" \t", 9)).size(), 5u);
  // Words are no syntax.
  EXPECT_EQ(ids(store_->list("\"so\"", 9)), (Ids{"german"}));
  EXPECT_EQ(ids(store_->list("\"", 9)), (Ids{"german"}));
  EXPECT_EQ(ids(store_->list("kite AND", 9)), (Ids{"two"})) << "the word \"and\"";
  for (const char* query : {"kite*", "NOT kite", "(kite", "title:red", "^red", "'; DROP TABLE message; --"}) {
    EXPECT_EQ(ids(store_->list(query, 9)), Ids{}) << query;
  }
  EXPECT_FALSE(store_->list(std::string(1001, 'x'), 9));

  const auto found = store_->list("string", 9);
  const std::string& snippet = found->at(0).snippet;
  EXPECT_NE(snippet.find("x the kite's string y"), std::string::npos) << snippet;
  EXPECT_TRUE(snippet.starts_with("…x") && snippet.ends_with("y…")) << snippet;
  EXPECT_EQ(store_->list("red kites", 9)->at(0).snippet, "");
}

TEST_F(Conversations, SearchFollowsEveryChange) {
  ASSERT_TRUE(store_->put("c", message("a", "", "walrus")));
  ASSERT_TRUE(store_->put("c", message("a", "", "pelican")));
  EXPECT_EQ(ids(store_->list("walrus", 9)), Ids{});
  EXPECT_EQ(ids(store_->list("pelican", 9)), (Ids{"c"}));
  ASSERT_TRUE(store_->rename("c", "otter"));
  ASSERT_TRUE(store_->rename("c", "badger"));
  EXPECT_EQ(ids(store_->list("otter", 9)), Ids{});
  EXPECT_EQ(ids(store_->list("badger", 9)), (Ids{"c"}));
  ASSERT_TRUE(store_->remove("c"));
  EXPECT_EQ(ids(store_->list("pelican", 9)), Ids{});
  EXPECT_EQ(ids(store_->list("badger", 9)), Ids{});
}

TEST_F(Conversations, RemovedWordsAreGoneFromTheFile) {
  ASSERT_TRUE(store_->put("keep", message("a", "", "something else")));
  ASSERT_TRUE(store_->put("c", message("a", "", "rhododendron")));
  ASSERT_TRUE(store_->remove("c"));
  EXPECT_EQ(store_->get("c").error().code, Error::Code::kNotFound);
  EXPECT_EQ(store_->remove("c").error().message, "there is no conversation c");
  EXPECT_EQ(store_->rename("c", "x").error().code, Error::Code::kNotFound);
  for (const char* suffix : {"", "-wal"}) {
    const auto bytes = read_file(file_.string() + suffix);
    ASSERT_TRUE(bytes);
    EXPECT_EQ(bytes->find("rhodo"), std::string::npos) << suffix;
    EXPECT_EQ(bytes->find("dodendr"), std::string::npos) << suffix;
  }
}

// Random changes against a map.
RC_GTEST_PROP(ConversationsModel, BehaveAsAMapOfTrees, ()) {
  const ScratchDir folder;
  auto store = ConversationStore::open(folder / "db").value();
  std::map<std::string, std::map<std::string, std::pair<std::string, std::string>>> model;  // parent, text
  const int steps = *rc::gen::inRange(1, 40);
  for (int i = 0; i < steps; ++i) {
    const std::string id = fmt::format("c{}", *rc::gen::inRange(0, 3));
    if (*rc::gen::inRange(0, 8) == 0) {
      RC_ASSERT(store.remove(id).has_value() == (model.erase(id) > 0));
      continue;
    }
    auto& tree = model[id];
    const std::string name = fmt::format("m{}", *rc::gen::inRange(0, 6));
    const std::string parent = *rc::gen::element<std::string>("", "m0", "m1", "m2");
    const std::string text = *rc::gen::element<std::string>("walrus", "pelican", "red kite", "");
    const auto known = tree.find(name);
    const bool good = known != tree.end() ? known->second.first == parent : parent.empty() || tree.contains(parent);
    const bool existed = store.get(id).has_value();
    RC_ASSERT(store.put(id, message(name, parent, text)).has_value() == good);
    if (good) tree[name] = {parent, text};
    if (!good && !existed) model.erase(id);
  }
  for (const char* word : {"walrus", "kite", "ed"}) {
    std::vector<std::string> expected;
    for (const auto& [id, tree] : model) {
      if (std::any_of(tree.begin(), tree.end(),
                      [&](const auto& m) { return m.second.second.find(word) != std::string::npos; }))
        expected.push_back(id);
    }
    auto found = ids(store.list(word, 99));
    std::sort(found.begin(), found.end());
    RC_ASSERT(found == expected);
  }
  for (const auto& [id, tree] : model) {
    const auto back = store.get(id);
    RC_ASSERT(back.has_value());
    RC_ASSERT(back->messages.size() == tree.size());
    for (const auto& m : back->messages) RC_ASSERT(tree.at(m.id) == std::make_pair(m.parent, m.text));
  }
}

TEST_F(Conversations, TakeCallsOfManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(store_->put(fmt::format("c{}", i % 5), message(fmt::format("m{}", t * 20 + i), "", "words")));
        EXPECT_TRUE(store_->list("words", 9));
        EXPECT_TRUE(store_->get(fmt::format("c{}", i % 5)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  size_t total = 0;
  for (const auto& id : ids(store_->list("", 9))) total += store_->get(id)->messages.size();
  EXPECT_EQ(total, 80u);
}

TEST_F(Conversations, SayThatAnotherProgramHoldsTheFile) {
  ASSERT_TRUE(store_->put("c", message("a", "", "before")));
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto refused = store_->put("c", message("b", "a", "during"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "the conversations in " + file_.string() + ": another program holds the file");
  EXPECT_EQ(store_->get("c")->messages.size(), 1u) << "reading goes on";
  ASSERT_EQ(sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_TRUE(store_->put("c", message("b", "a", "after")));
}

Error open_error(const std::filesystem::path& file) {
  const auto opened = ConversationStore::open(file);
  EXPECT_FALSE(opened);
  return opened ? Error{} : opened.error();
}

TEST(ConversationsFile, IsRefusedIfItIsNotOurs) {
  const ScratchDir folder;
  ASSERT_TRUE(write_file(folder / "text", std::string(5000, 'x')));
  EXPECT_EQ(open_error(folder / "text").message, "the conversations in " + (folder / "text").string() +
                                                     ": the file is not a database; move it away to begin a new one");
  EXPECT_NE(open_error(folder.path()).message.find("cannot open"), std::string::npos);
  EXPECT_NE(open_error(folder / "text" / "conversations.db").message.find("cannot"), std::string::npos);

  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder / "other").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "CREATE TABLE t(x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_EQ(open_error(folder / "other").message, (folder / "other").string() + " is a database of another program");

  ASSERT_TRUE(ConversationStore::open(folder / "newer"));
  ASSERT_EQ(sqlite3_open((folder / "newer").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "PRAGMA user_version = 2", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_EQ(open_error(folder / "newer").message,
            (folder / "newer").string() + " was written by a newer version of Calla: its schema is 2, not 1");
}

// Every page of the file in turn overwritten with noise, then cut: calls fail with a message or work, none crashes, and
// none hangs.
TEST(ConversationsFile, SurvivesDamage) {
  const ScratchDir folder;
  const auto file = folder / "db";
  {
    auto store = ConversationStore::open(file).value();
    for (int i = 0; i < 30; ++i)
      ASSERT_TRUE(store.put(fmt::format("c{}", i % 7),
                            message(fmt::format("m{}", i), "", std::string(700, 'a' + i % 26) + " kite")));
  }
  const std::string whole = read_file(file).value();
  const size_t pages = whole.size() / 4096;
  ASSERT_GT(pages, 10u);
  int refused = 0;
  for (size_t page = 0; page < 2 * pages; ++page) {
    std::string broken = whole;
    if (page < pages) {
      uint32_t random = static_cast<uint32_t>(page) + 1;
      for (size_t i = page == 0 ? 100 : 0; i < 4096; ++i) {
        random = random * 1664525u + 1013904223u;
        broken[page * 4096 + i] = static_cast<char>(random >> 24);
      }
    } else {
      broken.resize((page - pages) * 4096 + 1000);
    }
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(file.string() + suffix);
    ASSERT_TRUE(write_file(file, broken));
    auto store = ConversationStore::open(file);
    bool all = store.has_value();
    if (store) {
      all = store->list("kite", 9).has_value() && all;
      all = store->get("c1").has_value() && all;
      all = store->put("c1", message("new", "", "more")).has_value() && all;
      all = store->remove("c2").has_value() && all;
      all = store->list("", 9).has_value() && all;
    } else {
      EXPECT_NE(store.error().message.find(file.string()), std::string::npos) << store.error().message;
    }
    refused += all ? 0 : 1;
  }
  EXPECT_GT(refused, static_cast<int>(pages)) << "damage goes unnoticed";
}

// A disk that is full from the n-th write on. Methods of every file that SQLite opens go through here.
struct FullDisk {
  static inline int writes_left = -1;  // -1: the disk has room
  static inline sqlite3_vfs* system = nullptr;
  static inline decltype(sqlite3_io_methods::xWrite) write = nullptr;
  static inline std::map<const sqlite3_io_methods*, sqlite3_io_methods> methods;  // SQLite's, and ours in their place

  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    const int code = system->xOpen(system, name, file, flags, out_flags);
    if (code != SQLITE_OK) return code;
    auto [it, is_new] = methods.try_emplace(file->pMethods, *file->pMethods);
    if (is_new) {
      EXPECT_TRUE(write == nullptr || write == it->second.xWrite);
      write = it->second.xWrite;
      it->second.xWrite = [](sqlite3_file* f, const void* data, int size, sqlite3_int64 offset) {
        if (writes_left == 0) return SQLITE_FULL;
        if (writes_left > 0) --writes_left;
        return write(f, data, size, offset);
      };
    }
    file->pMethods = &it->second;
    return SQLITE_OK;
  }
};

TEST(ConversationsFile, SurvivesAFullDiskAtEveryWrite) {
  const ScratchDir folder;
  FullDisk::system = sqlite3_vfs_find(nullptr);
  sqlite3_vfs full = *FullDisk::system;
  full.zName = "full-disk";
  full.xOpen = FullDisk::open;
  ASSERT_EQ(sqlite3_vfs_register(&full, 1), SQLITE_OK);
  int failures = 0;
  for (int writes = 0;; ++writes) {
    const auto file = folder / (fmt::format("db{}", writes));
    FullDisk::writes_left = -1;
    auto store = ConversationStore::open(file);
    ASSERT_TRUE(store) << store.error().message;
    ASSERT_TRUE(store->put("c", message("a", "", "before")));
    FullDisk::writes_left = writes;
    const auto put = store->put("c", message("b", "a", std::string(30000, 'x')));
    const bool ran_dry = FullDisk::writes_left == 0;
    if (!put) {
      ++failures;
      EXPECT_EQ(put.error().message, "the conversations in " + file.string() + ": the disk is full");
      const auto back = store->get("c");
      ASSERT_TRUE(back) << back.error().message;
      EXPECT_EQ(back->messages.size(), 1u);
    }
    const auto removed = store->remove("c");
    FullDisk::writes_left = -1;
    if (!removed) {
      ASSERT_TRUE(store->put("c", message("d", "a", "room again")));
      EXPECT_EQ(ids(store->list("room", 9)), (Ids{"c"}));
    }
    if (put && removed && !ran_dry && writes > 0) break;
    ASSERT_LT(writes, 500);
  }
  EXPECT_GT(failures, 3);
  sqlite3_vfs_unregister(&full);
}

TEST(ConversationsFile, LiesInTheDataFolder) {
  const auto with = [](const char* data, const char* home) {
    ::setenv("XDG_DATA_HOME", data, 1);
    ::setenv("HOME", home, 1);
    return conversations_file();
  };
  const std::string data = std::getenv("XDG_DATA_HOME") == nullptr ? "" : std::getenv("XDG_DATA_HOME");
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  EXPECT_EQ(with("/data", "/home/x"), "/data/calla/conversations.db");
  EXPECT_EQ(with("", "/home/x"), "/home/x/.local/share/calla/conversations.db");
  EXPECT_EQ(with("relative", "/home/x"), "/home/x/.local/share/calla/conversations.db");
  EXPECT_FALSE(with("", ""));
  with(data.c_str(), home.c_str());
}

}  // namespace
}  // namespace calla
