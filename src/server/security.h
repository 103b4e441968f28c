#pragma once

// Who may ask. A browser will send requests to this machine for any page that it shows; the Host and Origin headers,
// which no page can forge, tell those apart from the owner's.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http.h"

namespace calla {

struct AccessOptions {
  std::string host;     // the address that is listened on, as HttpOptions::host
  std::string api_key;  // "": none is needed
  // Host names, without port, that requests may name besides those of the loopback and, beyond it, address literals
  // (which cannot be rebound by a foreign DNS server).
  std::vector<std::string> allow_hosts;
  // Origins ("https://app.example", with port where it is not the scheme's) of pages in browsers that may read answers;
  // "*": all, which needs a key. Pages of the loopback may ask, but not read.
  std::vector<std::string> allow_origins;
};

// Immutable; thread-safe.
class Access {
 public:
  // Errors: an address beyond the loopback without a key of at least 8 characters, a key that is not printable ASCII,
  // "*" without a key, an origin or host name that can never match.
  static Result<Access> make(AccessOptions options);

  struct Refusal {
    int status = 403;
    std::string message;
    std::vector<HttpHeader> headers;
  };
  // Host and Origin, and the key where `needs_key`: "Authorization: Bearer KEY" or "X-Api-Key: KEY".
  std::optional<Refusal> check(const HttpRequest& request, bool needs_key) const;

  // What the answer to a page of another origin must carry so that the page may read it; {} without one.
  std::vector<HttpHeader> cors(const HttpRequest& request) const;
  // The answer to OPTIONS. `methods`: what the path can do, "GET, HEAD".
  HttpResponse preflight(const HttpRequest& request, std::string_view methods) const;

 private:
  explicit Access(AccessOptions options) : o_(std::move(options)) {}
  bool host_allowed(std::string_view host) const;
  bool origin_listed(std::string_view origin) const;
  AccessOptions o_;
};

bool is_loopback(std::string_view host);  // a name or literal, brackets or not: localhost, 127.0.0.0/8, ::1

// Takes the same time wherever the two differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace calla
