#include "store/conversations.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <utility>

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr int kApplicationId = 0x43616c6c;  // "Call": marks our files
constexpr int kSchemaVersion = 1;
constexpr int kBusyMilliseconds = 1000;
constexpr size_t kMaxQueryBytes = 1000;
constexpr size_t kMaxWords = 16;
constexpr size_t kSnippetBytes = 160;

// The indexes of texts hold no copy of them; the triggers keep them in step, in the way of SQLite's manual for external
// content. Trigrams find parts of words, and words of languages that put no spaces between them.
constexpr const char* kSchema = R"sql(
  CREATE TABLE conversation(
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, created INTEGER NOT NULL,
    updated INTEGER NOT NULL UNIQUE, leaf TEXT NOT NULL DEFAULT '', settings TEXT NOT NULL DEFAULT '{}');
  CREATE TABLE message(
    number INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE,
    id TEXT NOT NULL, parent TEXT NOT NULL, role TEXT NOT NULL, json TEXT NOT NULL, text TEXT NOT NULL,
    UNIQUE(conversation, id));
  CREATE VIRTUAL TABLE title_index USING fts5(title, content='conversation', content_rowid='number', tokenize='trigram');
  CREATE VIRTUAL TABLE text_index USING fts5(text, content='message', content_rowid='number', tokenize='trigram');
  CREATE TRIGGER conversation_added AFTER INSERT ON conversation BEGIN
    INSERT INTO title_index(rowid, title) VALUES (new.number, new.title);
  END;
  CREATE TRIGGER conversation_removed AFTER DELETE ON conversation BEGIN
    INSERT INTO title_index(title_index, rowid, title) VALUES ('delete', old.number, old.title);
  END;
  CREATE TRIGGER conversation_renamed AFTER UPDATE OF title ON conversation BEGIN
    INSERT INTO title_index(title_index, rowid, title) VALUES ('delete', old.number, old.title);
    INSERT INTO title_index(rowid, title) VALUES (new.number, new.title);
  END;
  CREATE TRIGGER message_added AFTER INSERT ON message BEGIN
    INSERT INTO text_index(rowid, text) VALUES (new.number, new.text);
  END;
  CREATE TRIGGER message_removed AFTER DELETE ON message BEGIN
    INSERT INTO text_index(text_index, rowid, text) VALUES ('delete', old.number, old.text);
  END;
  CREATE TRIGGER message_rewritten AFTER UPDATE OF text ON message BEGIN
    INSERT INTO text_index(text_index, rowid, text) VALUES ('delete', old.number, old.text);
    INSERT INTO text_index(rowid, text) VALUES (new.number, new.text);
  END;
)sql";

int64_t now_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

tl::unexpected<Error> database_error(const fs::path& file, int code, const char* detail) {
  const auto io = [&](std::string what) {
    return fail(Error::Code::kIo, fmt::format("the conversations in {}: {}", file.string(), what));
  };
  switch (code & 0xff) {
    case SQLITE_FULL:
      return io("the disk is full");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return io("another program holds the file");
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return io("the file may not be written");
    case SQLITE_CORRUPT:
      return io("the file is damaged; move it away to begin a new one");
    case SQLITE_NOTADB:
      return io("the file is not a database; move it away to begin a new one");
    case SQLITE_TOOBIG:
      return io("a text is too large");
    default:
      return io(detail);
  }
}

tl::unexpected<Error> no_conversation(std::string_view id) {
  return fail(Error::Code::kNotFound, fmt::format("there is no conversation {}", id));
}

// A prepared statement. An error of any step stays in the statement and comes out of done() or next().
class Statement {
 public:
  Statement(sqlite3* db, const fs::path& file, const std::string& sql) : db_(db), file_(file) {
    code_ = sqlite3_prepare_v2(db, sql.c_str(), -1, &statement_, nullptr);
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(statement_); }

  Statement& bind(std::string_view value) {
    // The bytes outlive the statement at every call here.
    if (code_ == SQLITE_OK) {
      code_ = sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
    }
    return *this;
  }
  Statement& bind(int64_t value) {
    if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }

  // Whether there is a row, now the current one.
  Result<bool> next() {
    if (code_ == SQLITE_OK) {
      const int step = sqlite3_step(statement_);
      if (step == SQLITE_ROW) return true;
      if (step == SQLITE_DONE) return false;
      code_ = step;
    }
    return database_error(file_, code_, sqlite3_errmsg(db_));
  }
  // Runs it to the end.
  Result<void> done() {
    for (;;) {
      CALLA_ASSIGN(const bool more, next());
      if (!more) return {};
    }
  }
  // For another round with other values.
  Statement& reset() {
    sqlite3_reset(statement_);  // returns the error of the last step, which next() has reported
    bound_ = 0;
    return *this;
  }

  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    if (bytes == nullptr) return "";
    return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  sqlite3* db_;
  const fs::path& file_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
  int bound_ = 0;
};

// What was asked for, as FTS5 and LIKE want it.
struct Words {
  std::string match;               // every word of three characters or more, quoted; empty: none is
  std::vector<std::string> likes;  // the others, as patterns: too short for a trigram
  std::string first;               // for the snippet
};

Words split_words(std::string_view query) {
  Words words;
  size_t count = 0;
  for (size_t at = 0; at < query.size() && count < kMaxWords;) {
    const size_t begin = query.find_first_not_of(" \t\r\n", at);
    if (begin == query.npos) break;
    at = std::min(query.find_first_of(" \t\r\n", begin), query.size());
    const std::string_view word = query.substr(begin, at - begin);
    ++count;
    if (words.first.empty()) words.first = word;
    const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xc0) != 0x80; });
    std::string quoted;
    if (characters >= 3) {
      for (const char c : word) quoted.append(c == '"' ? 2 : 1, c);
      words.match += fmt::format("{}\"{}\"", words.match.empty() ? "" : " ", quoted);
    } else {
      for (const char c : word) {
        if (c == '%' || c == '_' || c == '\\') quoted += '\\';
        quoted += c;
      }
      words.likes.push_back("%" + quoted + "%");
    }
  }
  return words;
}

// SQL for "this row of `table` holds all words", its values left to bind_words.
std::string holds(const Words& words, const char* index, const char* column) {
  std::string sql = "1";
  if (!words.match.empty()) sql += fmt::format(" AND number IN (SELECT rowid FROM {0} WHERE {0} MATCH ?)", index);
  for (size_t i = 0; i < words.likes.size(); ++i) sql += fmt::format(" AND {} LIKE ? ESCAPE '\\'", column);
  return sql;
}

void bind_words(Statement& statement, const Words& words) {
  if (!words.match.empty()) statement.bind(words.match);
  for (const std::string& like : words.likes) statement.bind(like);
}

// One line of text around the first place of a word, cut between characters.
std::string snippet_of(std::string_view text, std::string_view word) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto same = [&](char a, char b) { return lower(a) == lower(b); };
  const auto found = std::search(text.begin(), text.end(), word.begin(), word.end(), same);
  const size_t place = found == text.end() ? 0 : static_cast<size_t>(found - text.begin());
  const auto is_inside = [&](size_t at) { return at < text.size() && (text[at] & 0xc0) == 0x80; };
  size_t begin = place > kSnippetBytes / 3 ? place - kSnippetBytes / 3 : 0;
  while (is_inside(begin)) ++begin;
  size_t end = std::min(begin + kSnippetBytes, text.size());
  while (is_inside(end)) --end;
  std::string line = begin > 0 ? "…" : "";
  for (const char c : text.substr(begin, end - begin)) {
    const bool space = static_cast<unsigned char>(c) <= 0x20;
    if (!space) line += c;
    if (space && !line.empty() && line.back() != ' ') line += ' ';
  }
  return end < text.size() ? line + "…" : line;
}

// The file, for its owner only, in folders that are made where they are missing.
Result<void> create_private(const fs::path& file) {
  std::error_code error;
  const fs::path folder = file.parent_path();
  if (!folder.empty() && !fs::exists(folder, error)) {
    fs::create_directories(folder, error);
    if (error) return fail(Error::Code::kIo, fmt::format("cannot create {}: {}", folder.string(), error.message()));
    fs::permissions(folder, fs::perms::owner_all, error);  // a hint: the file itself is private anyway
  }
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return fail(Error::Code::kIo,
                fmt::format("cannot open {}: {}", file.string(), std::generic_category().message(errno)));
  }
  struct stat st {};
  const bool regular = ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  ::close(fd);
  if (!regular) return fail(Error::Code::kIo, fmt::format("{} is not a regular file", file.string()));
  return {};
}

}  // namespace

struct ConversationStore::Database {
  explicit Database(fs::path path) : file(std::move(path)) {}
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { sqlite3_close_v2(db); }

  Statement prepare(const std::string& sql) const { return Statement(db, file, sql); }
  Result<void> run(const char* sql) const {
    const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) return database_error(file, code, sqlite3_errmsg(db));
    return {};
  }
  Result<int64_t> integer(const char* sql) const {
    Statement statement = prepare(sql);
    CALLA_ASSIGN(const bool row, statement.next());
    return row ? statement.integer(0) : 0;
  }
  // Runs `work` in a transaction that takes the write lock at once, so that it cannot fail for it half-way.
  template <class Work>
  auto transaction(Work work) -> decltype(work()) {
    CALLA_TRY(run("BEGIN IMMEDIATE"));
    auto result = work();
    if (result) {
      if (auto committed = run("COMMIT"); !committed) result = tl::unexpected(std::move(committed).error());
    }
    // A full disk may have rolled back already. If not even this works, closing the file does it.
    if (!result && sqlite3_get_autocommit(db) == 0) sqlite3_exec(db, "ROLLBACK", nullptr, nullptr, nullptr);
    return result;
  }

  Result<void> prepare_schema();
  // Its row; kNotFound.
  Result<int64_t> number_of(std::string_view id) const;
  Result<ConversationSummary> summary_of(int64_t number) const;
  Result<bool> has_message(int64_t conversation, std::string_view id) const;
  Result<void> put_message(int64_t conversation, const StoredMessage& message, size_t index) const;

  fs::path file;
  sqlite3* db = nullptr;
  std::mutex mutex;
};

Result<void> ConversationStore::Database::prepare_schema() {
  return transaction([&]() -> Result<void> {
    CALLA_ASSIGN(const int64_t application, integer("PRAGMA application_id"));
    CALLA_ASSIGN(const int64_t version, integer("PRAGMA user_version"));
    CALLA_ASSIGN(const int64_t tables, integer("SELECT count(*) FROM sqlite_schema"));
    if (application == 0 && version == 0 && tables == 0) {
      CALLA_TRY(run(kSchema));
      return run(
          fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplicationId, kSchemaVersion).c_str());
    }
    if (application != kApplicationId) {
      return fail(Error::Code::kIo, fmt::format("{} is a database of another program", file.string()));
    }
    if (version != kSchemaVersion) {
      return fail(Error::Code::kIo, fmt::format("{} was written by a newer version of Calla: its schema is {}, not {}",
                                                file.string(), version, kSchemaVersion));
    }
    return {};
  });
}

Result<int64_t> ConversationStore::Database::number_of(std::string_view id) const {
  Statement find = prepare("SELECT number FROM conversation WHERE id = ?");
  CALLA_ASSIGN(const bool found, find.bind(id).next());
  if (!found) return no_conversation(id);
  return find.integer(0);
}

Result<ConversationSummary> ConversationStore::Database::summary_of(int64_t number) const {
  Statement find = prepare("SELECT id, title, created, updated FROM conversation WHERE number = ?");
  CALLA_TRY(find.bind(number).next());
  return ConversationSummary{find.text(0), find.text(1), find.integer(2), find.integer(3), {}};
}

Result<bool> ConversationStore::Database::has_message(int64_t conversation, std::string_view id) const {
  return prepare("SELECT 1 FROM message WHERE conversation = ? AND id = ?").bind(conversation).bind(id).next();
}

Result<void> ConversationStore::Database::put_message(int64_t conversation, const StoredMessage& message,
                                                      size_t index) const {
  Statement known = prepare("SELECT number, parent FROM message WHERE conversation = ? AND id = ?");
  CALLA_ASSIGN(const bool is_known, known.bind(conversation).bind(message.id).next());
  if (is_known) {
    if (known.text(1) != message.parent) {
      return invalid(fmt::format("messages[{}]: the parent of {} is \"{}\" and cannot become \"{}\"", index, message.id,
                                 known.text(1), message.parent));
    }
    return prepare("UPDATE message SET role = ?, json = ?, text = ? WHERE number = ?")
        .bind(message.role)
        .bind(message.json)
        .bind(message.text)
        .bind(known.integer(0))
        .done();
  }
  if (!message.parent.empty()) {
    CALLA_ASSIGN(const bool has_parent, has_message(conversation, message.parent));
    if (!has_parent) {
      return invalid(fmt::format("messages[{}].parent: there is no message {} before it", index, message.parent));
    }
  }
  return prepare("INSERT INTO message(conversation, id, parent, role, json, text) VALUES (?, ?, ?, ?, ?, ?)")
      .bind(conversation)
      .bind(message.id)
      .bind(message.parent)
      .bind(message.role)
      .bind(message.json)
      .bind(message.text)
      .done();
}

Result<fs::path> conversations_file() {
  const auto folder = [](const char* name) -> fs::path {
    const char* const value = std::getenv(name);
    const fs::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : fs::path();  // the XDG specification has relative paths ignored
  };
  if (const fs::path data = folder("XDG_DATA_HOME"); !data.empty()) return data / "calla/conversations.db";
  if (const fs::path home = folder("HOME"); !home.empty()) return home / ".local/share/calla/conversations.db";
  return fail(Error::Code::kNotFound, "no place for conversations: neither XDG_DATA_HOME nor HOME is an absolute path");
}

ConversationStore::ConversationStore(std::unique_ptr<Database> database) : database_(std::move(database)) {}
ConversationStore::ConversationStore(ConversationStore&&) noexcept = default;
ConversationStore& ConversationStore::operator=(ConversationStore&&) noexcept = default;
ConversationStore::~ConversationStore() = default;

Result<ConversationStore> ConversationStore::open(const fs::path& file) {
  CALLA_TRY(create_private(file));
  auto database = std::make_unique<Database>(file);
  const int code = sqlite3_open_v2(file.c_str(), &database->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return database_error(file, code, sqlite3_errstr(code));
  sqlite3_extended_result_codes(database->db, 1);
  sqlite3_busy_timeout(database->db, kBusyMilliseconds);
  // In WAL mode a commit without fsync survives a crash of the program, and a power cut costs at most the last commits.
  CALLA_TRY(database->run(
      "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON"));
  CALLA_TRY(database->prepare_schema());
  return ConversationStore(std::move(database));
}

Result<std::vector<ConversationSummary>> ConversationStore::list(std::string_view query, int limit,
                                                                 int64_t before) const {
  if (query.size() > kMaxQueryBytes) {
    return invalid(fmt::format("the search has {} bytes, more than the limit of {}", query.size(), kMaxQueryBytes));
  }
  const Words words = split_words(query);
  const std::lock_guard lock(database_->mutex);
  const bool searches = !words.first.empty();
  // The newest message of each conversation that holds all words stands for it.
  const std::string sql =
      searches ? fmt::format(
                     "WITH hit AS MATERIALIZED (SELECT conversation, max(number) AS message FROM message "
                     "WHERE {} GROUP BY conversation) "
                     "SELECT id, title, created, updated, "
                     "(SELECT text FROM message WHERE number = hit.message) FROM conversation "
                     "LEFT JOIN hit ON hit.conversation = number WHERE (hit.message IS NOT NULL OR ({})) "
                     "AND updated < ? ORDER BY updated DESC LIMIT ?",
                     holds(words, "text_index", "text"), holds(words, "title_index", "title"))
               : "SELECT id, title, created, updated FROM conversation WHERE updated < ? ORDER BY updated DESC LIMIT ?";
  Statement statement = database_->prepare(sql);
  if (searches) {
    bind_words(statement, words);
    bind_words(statement, words);
  }
  statement.bind(before).bind(int64_t{limit});
  std::vector<ConversationSummary> found;
  for (;;) {
    CALLA_ASSIGN(const bool row, statement.next());
    if (!row) return found;
    found.push_back({statement.text(0), statement.text(1), statement.integer(2), statement.integer(3), {}});
    if (!searches) continue;
    if (const std::string text = statement.text(4); !text.empty()) found.back().snippet = snippet_of(text, words.first);
  }
}

Result<StoredConversation> ConversationStore::get(std::string_view id) const {
  const std::lock_guard lock(database_->mutex);
  Statement head =
      database_->prepare("SELECT number, title, created, updated, leaf, settings FROM conversation WHERE id = ?");
  CALLA_ASSIGN(const bool found, head.bind(id).next());
  if (!found) return no_conversation(id);
  StoredConversation conversation;
  conversation.summary = {std::string(id), head.text(1), head.integer(2), head.integer(3), {}};
  conversation.leaf = head.text(4);
  conversation.settings = head.text(5);
  Statement messages =
      database_->prepare("SELECT id, parent, role, json, text FROM message WHERE conversation = ? ORDER BY number");
  messages.bind(head.integer(0));
  for (;;) {
    CALLA_ASSIGN(const bool row, messages.next());
    if (!row) return conversation;
    conversation.messages.push_back(
        {messages.text(0), messages.text(1), messages.text(2), messages.text(3), messages.text(4)});
  }
}

Result<ConversationSummary> ConversationStore::put(std::string_view id, const ConversationChange& change) {
  CALLA_TRY(check_id(id, "the conversation's id"));
  const std::lock_guard lock(database_->mutex);
  return database_->transaction([&]() -> Result<ConversationSummary> {
    CALLA_ASSIGN(const int64_t last, database_->integer("SELECT max(updated) FROM conversation"));
    const int64_t now = std::max(now_milliseconds(), last + 1);
    CALLA_TRY(
        database_
            ->prepare("INSERT INTO conversation(id, title, created, updated) VALUES (?, 'New conversation', ?, ?) "
                      "ON CONFLICT(id) DO UPDATE SET updated = excluded.updated")
            .bind(id)
            .bind(now)
            .bind(now)
            .done());
    CALLA_ASSIGN(const int64_t number, database_->number_of(id));
    for (size_t i = 0; i < change.messages.size(); ++i) {
      CALLA_TRY(database_->put_message(number, change.messages[i], i));
    }
    Statement count = database_->prepare("SELECT count(*) FROM message WHERE conversation = ?");
    CALLA_TRY(count.bind(number).next());
    if (count.integer(0) > static_cast<int64_t>(kMaxMessages)) {
      return invalid(fmt::format("the conversation would have {} messages, more than the limit of {}", count.integer(0),
                                 kMaxMessages));
    }
    const auto set = [&](const char* sql, const std::optional<std::string>& value) -> Result<void> {
      return value ? database_->prepare(sql).bind(*value).bind(number).done() : Result<void>();
    };
    if (change.leaf) {
      CALLA_ASSIGN(const bool exists, database_->has_message(number, *change.leaf));
      if (!exists) return invalid(fmt::format("leaf: there is no message {}", *change.leaf));
    }
    CALLA_TRY(set("UPDATE conversation SET title = ? WHERE number = ?", change.title));
    CALLA_TRY(set("UPDATE conversation SET leaf = ? WHERE number = ?", change.leaf));
    CALLA_TRY(set("UPDATE conversation SET settings = ? WHERE number = ?", change.settings));
    return database_->summary_of(number);
  });
}

Result<ConversationSummary> ConversationStore::rename(std::string_view id, std::string_view title) {
  CALLA_ASSIGN(const std::string clean, clean_title(title));
  const std::lock_guard lock(database_->mutex);
  return database_->transaction([&]() -> Result<ConversationSummary> {
    CALLA_ASSIGN(const int64_t number, database_->number_of(id));
    CALLA_TRY(database_->prepare("UPDATE conversation SET title = ? WHERE number = ?").bind(clean).bind(number).done());
    return database_->summary_of(number);
  });
}

Result<void> ConversationStore::remove(std::string_view id) {
  const std::lock_guard lock(database_->mutex);
  auto removed = database_->transaction([&]() -> Result<void> {
    CALLA_ASSIGN(const int64_t number, database_->number_of(id));
    CALLA_TRY(database_->prepare("DELETE FROM conversation WHERE number = ?").bind(number).done());
    // An index only marks words as deleted until its parts are merged.
    return database_->run(
        "INSERT INTO text_index(text_index) VALUES ('optimize'); "
        "INSERT INTO title_index(title_index) VALUES ('optimize')");
  });
  if (!removed) return removed;
  // What the log still holds goes too. Another reader may prevent it: then a later checkpoint does it.
  sqlite3_wal_checkpoint_v2(database_->db, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  return {};
}

}  // namespace calla
