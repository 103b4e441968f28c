#pragma once

// A plain client of plain sockets, for what real clients would never send.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace calla {

class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    EXPECT_TRUE(connected_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(); }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Closes with a reset, as a killed client with unread data does.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }

  // False: the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads until `text` has come since the last call; what came up to its end. "" at the end of the connection or after
  // `seconds`.
  std::string until(std::string_view text, double seconds = 10) {
    const auto end = deadline(seconds);
    for (;;) {
      if (const size_t at = seen_.find(text); at != std::string::npos) {
        std::string out = seen_.substr(0, at + text.size());
        seen_.erase(0, out.size());
        return out;
      }
      if (!read_some(end)) return "";
    }
  }
  std::string exactly(size_t count, double seconds = 10) {
    const auto end = deadline(seconds);
    while (seen_.size() < count && read_some(end)) {
    }
    std::string out = seen_.substr(0, count);
    seen_.erase(0, out.size());
    return out;
  }
  // Everything until the server closes the connection; closed() tells whether it did.
  std::string rest(double seconds = 10) {
    const auto end = deadline(seconds);
    while (read_some(end)) {
    }
    return std::exchange(seen_, "");
  }
  bool closed() const { return ended_; }

  // One whole answer: head and body, chunks joined.
  struct Answer {
    int status = 0;
    std::string head, body;
    std::string header(const std::string& name) const {
      const size_t at = head.find("\r\n" + name + ": ");
      if (at == std::string::npos) return "";
      const size_t from = at + name.size() + 4;
      return head.substr(from, head.find("\r\n", from) - from);
    }
  };
  Answer answer(bool head_only = false, double seconds = 10) {
    Answer a;
    a.head = until("\r\n\r\n", seconds);
    if (a.head.size() < 12) return a;
    a.status = std::stoi(a.head.substr(9, 3));
    if (head_only || a.status == 204 || a.status == 304 || a.status == 100) return a;
    if (a.header("Transfer-Encoding") == "chunked") {
      for (;;) {
        const std::string line = until("\r\n", seconds);
        if (line.empty()) break;
        const size_t size = std::stoul(line, nullptr, 16);
        a.body += exactly(size, seconds);
        if (exactly(2, seconds) != "\r\n" || size == 0) break;
      }
    } else if (!a.header("Content-Length").empty()) {
      a.body = exactly(std::stoul(a.header("Content-Length")), seconds);
    } else {
      a.body = rest(seconds);
    }
    return a;
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static Time deadline(double seconds) {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  bool read_some(Time end) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd p{fd_, POLLIN, 0};
    if (ended_ || left <= 0 || ::poll(&p, 1, static_cast<int>(left)) != 1) return false;
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    ended_ = n <= 0;
    if (n > 0) seen_.append(buffer, static_cast<size_t>(n));
    return !ended_;
  }
  int fd_ = -1;
  bool connected_ = false, ended_ = false;
  std::string seen_;
};

// "POST /path" with a body and the headers that every request has.
inline std::string request_text(const std::string& line, const std::string& body = "", const std::string& more = "") {
  std::string text = line + " HTTP/1.1\r\nHost: localhost\r\n" + more;
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

}  // namespace calla
