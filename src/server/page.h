#pragma once

// The page at /: the files of web/dist, which the build puts into the program.

#include <span>
#include <string_view>

#include "server/router.h"

namespace calla {

struct PageFile {
  std::string_view path;  // "/", "/assets/index-3f2a.js"
  std::string_view type;  // its Content-Type
  std::string_view etag;  // quoted; of the content
  std::string_view bytes;
  std::string_view gzip;  // the same compressed; empty: not worth it
};

// Written by cmake/embed_page.cmake; empty in a program that was built without the page.
std::span<const PageFile> page_files();

// Nothing from anywhere else, no script in the page, no frames around it. A model's text that gets past the sanitiser
// finds no way to run, to load or to send anything; with Trusted Types, only the sanitiser can make nodes from text.
inline constexpr std::string_view kPagePolicy =
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify";

// Answers for the page's files, or, if there are none, for / with a line on how to build them.
void add_page(Router& router);
// The same from other files.
void add_page(Router& router, std::span<const PageFile> files);

}  // namespace calla
