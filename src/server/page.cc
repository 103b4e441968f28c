#include "server/page.h"

#include <algorithm>
#include <string>

namespace calla {
namespace {

constexpr std::string_view kNoPage =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Calla</title>"
    "<h1>Calla is running</h1><p>This program was built without its chat page. <code>make web</code>, which needs "
    "Node.js 18 or later and npm, and then another build add it. The API is at <code>/v1</code>.</p></html>\n";

// Whether a list such as Accept-Encoding or If-None-Match names `item`. What a client gives as "gzip;q=0" is refused
// too.
bool lists(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (entry.starts_with("W/")) entry.remove_prefix(2);
    if (entry == item || entry == "*") return true;
    if (entry.starts_with(item) && entry.substr(item.size()).starts_with(";q=")) {
      return entry.find_first_of("123456789", item.size()) != entry.npos;
    }
  }
  return false;
}

HttpResponse answer(const PageFile& file, const HttpRequest& request) {
  // Names under /assets/ hold a hash of the content, so a copy never gets old; the page itself is asked for each time.
  const bool hashed = file.path.starts_with("/assets/");
  HttpResponse response{200, std::string(file.type), {}, ""};
  response.headers = {{"ETag", std::string(file.etag)},
                      {"Cache-Control", hashed ? "public, max-age=31536000, immutable" : "no-cache"},
                      {"Content-Security-Policy", std::string(kPagePolicy)},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (!file.gzip.empty()) response.headers.push_back({"Vary", "Accept-Encoding"});
  if (lists(request.header("If-None-Match"), file.etag)) {
    response.status = 304;
    response.content_type = "";
  } else if (!file.gzip.empty() && lists(request.header("Accept-Encoding"), "gzip")) {
    response.headers.push_back({"Content-Encoding", "gzip"});
    response.body = file.gzip;
  } else {
    response.body = file.bytes;
  }
  return response;
}

}  // namespace

void add_page(Router& router, std::span<const PageFile> files) {
  constexpr Router::Flags kOpen{.open = true, .quiet = true};
  for (const PageFile& file : files) {
    router.add(
        "GET", std::string(file.path), [file](const Call& call) { call.reply->send(answer(file, call.request)); },
        kOpen);
  }
  if (!files.empty()) return;
  static constexpr PageFile kHelp{"/", "text/html; charset=utf-8", "\"none\"", kNoPage, ""};
  add_page(router, {&kHelp, 1});
}

void add_page(Router& router) {
  add_page(router, page_files());
}

}  // namespace calla
