#include "server/security.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/sha256.h"

namespace calla {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return out;
}

std::string_view without_brackets(std::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

bool is_literal(std::string_view host) {
  const std::string text(without_brackets(host));
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(text.size() == host.size() ? AF_INET : AF_INET6, text.c_str(), address.data()) == 1;
}

// "name:80", "[::1]:80" or the same without a port. "" if it is none of these.
std::string_view without_port(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  if (end == std::string_view::npos) return host.starts_with('[') ? std::string_view() : host;
  const size_t name_end = host[end] == ']' ? end + 1 : end;
  const std::string_view port = host.substr(name_end);
  if (!port.empty() && (port[0] != ':' || port.substr(1).find_first_not_of("0123456789") != std::string_view::npos)) {
    return {};
  }
  return host.substr(0, name_end);
}

// The host and port of an http(s) origin; "" where it has none ("null", another scheme, a path).
std::string_view origin_authority(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    origin.remove_prefix(scheme.size());
    return origin.find_first_of("/?#@ ") == std::string_view::npos ? origin : std::string_view();
  }
  return {};
}

}  // namespace

bool is_loopback(std::string_view host) {
  const std::string name = lower(without_brackets(host));
  if (name == "localhost" || name == "::1") return true;
  in_addr address{};
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // Of equal length whatever the texts are, and not to be steered byte by byte.
  const std::string x = sha256_hex(a), y = sha256_hex(b);
  int difference = 0;
  for (size_t i = 0; i < x.size(); ++i) difference |= x[i] ^ y[i];
  return difference == 0;
}

Result<Access> Access::make(AccessOptions o) {
  if (std::any_of(o.api_key.begin(), o.api_key.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    return invalid("the API key must be printable ASCII without spaces");
  }
  if (!is_loopback(o.host) && o.api_key.size() < 8) {
    return invalid(
        fmt::format("listening on {} lets other machines in: that needs an API key of at least 8 characters "
                    "(--api-key, or CALLA_API_KEY in the environment)",
                    o.host));
  }
  for (std::string& host : o.allow_hosts) {
    host = lower(host);
    if (host.empty() || without_port(host) != host || host.find('/') != std::string::npos) {
      return invalid(fmt::format("--allow-host takes a name or address without scheme and port, not \"{}\"", host));
    }
  }
  for (std::string& origin : o.allow_origins) {
    origin = lower(origin);
    if (origin == "*") {
      if (o.api_key.empty())
        return invalid("--allow-origin '*' lets every page in a browser in: that needs an API key");
    } else if (origin_authority(origin).empty()) {
      return invalid(fmt::format(
          "--allow-origin takes an origin such as https://app.example or http://localhost:5173, not \"{}\"", origin));
    }
  }
  return Access(std::move(o));
}

bool Access::host_allowed(std::string_view host) const {
  if (host.empty()) return false;
  if (is_loopback(host)) return true;
  if (!is_loopback(o_.host) && is_literal(host)) return true;
  return std::find(o_.allow_hosts.begin(), o_.allow_hosts.end(), lower(host)) != o_.allow_hosts.end();
}

bool Access::origin_listed(std::string_view origin) const {
  return std::any_of(o_.allow_origins.begin(), o_.allow_origins.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == lower(origin); });
}

std::optional<Access::Refusal> Access::check(const HttpRequest& request, bool needs_key) const {
  const std::string_view host = request.header("Host");
  if (!host_allowed(without_port(host))) {
    return Refusal{403,
                   fmt::format("the host name \"{}\" is not one of this server's; if it should be, start it with "
                               "--allow-host",
                               host),
                   {}};
  }
  const std::string_view origin = request.header("Origin");
  if (!origin.empty() && !origin_listed(origin)) {
    const std::string_view authority = origin_authority(origin);
    const bool own = !authority.empty() && lower(authority) == lower(host);
    if (!own && !is_loopback(without_port(authority))) {
      return Refusal{
          403,
          fmt::format("pages of {} may not use this server; if they should, start it with --allow-origin", origin),
          {}};
    }
  }
  if (!needs_key || o_.api_key.empty()) return std::nullopt;
  std::string_view given = request.header("X-Api-Key");
  const std::string_view authorization = request.header("Authorization");
  if (authorization.size() > 7 && lower(authorization.substr(0, 7)) == "bearer ") given = authorization.substr(7);
  if (equal_in_constant_time(given, o_.api_key)) return std::nullopt;
  return Refusal{
      401,
      given.empty() ? "an API key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY" : "the API key is wrong",
      {{"WWW-Authenticate", "Bearer"}}};
}

std::vector<HttpHeader> Access::cors(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  if (origin.empty() || !origin_listed(origin)) return {};
  return {{"Access-Control-Allow-Origin", std::string(origin)},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
          {"Vary", "Origin"}};
}

HttpResponse Access::preflight(const HttpRequest& request, std::string_view methods) const {
  HttpResponse response{204, "", cors(request), ""};
  response.headers.push_back({"Allow", fmt::format("{}, OPTIONS", methods)});
  if (response.headers.size() == 1) return response;
  response.headers.push_back({"Access-Control-Allow-Methods", std::string(methods)});
  if (const auto wanted = request.header("Access-Control-Request-Headers"); !wanted.empty()) {
    response.headers.push_back({"Access-Control-Allow-Headers", std::string(wanted)});
  }
  if (!request.header("Access-Control-Request-Private-Network").empty()) {
    response.headers.push_back({"Access-Control-Allow-Private-Network", "true"});
  }
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

}  // namespace calla
