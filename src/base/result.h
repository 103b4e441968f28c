#pragma once

// Errors that the outside world can cause: files, requests, flags, devices. Our own bugs are CHECKs (check.h).

#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace calla {

struct Error {
  enum class Code {
    kInvalid,      // the input is wrong: a flag, a request field, the content of a file
    kNotFound,     // a file, folder, tensor or name does not exist
    kIo,           // reading or writing failed: permissions, full disk, truncated file
    kUnsupported,  // understood, but not something this build can do
    kMemory,       // does not fit in the memory plan
    kCancelled,    // stopped on request
    kBusy,         // nothing is wrong with the request: there is no room for it now
  };
  Code code = Code::kInvalid;
  std::string message;  // one line, no final stop; names the file, tensor, field or number and what was expected
};

template <class T>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> fail(Error::Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}
[[nodiscard]] inline tl::unexpected<Error> invalid(std::string message) {
  return fail(Error::Code::kInvalid, std::move(message));
}

}  // namespace calla

// Returns the error of `expr` (a Result) from the enclosing function, if it has one.
#define CALLA_TRY(expr)                                                        \
  do {                                                                         \
    if (auto calla_result_ = (expr); !calla_result_) {                         \
      return tl::unexpected<::calla::Error>(std::move(calla_result_).error()); \
    }                                                                          \
  } while (0)

// `CALLA_ASSIGN(auto x, expr)`: x takes the value of `expr` (a Result), or the enclosing function returns its error.
#define CALLA_ASSIGN(lhs, expr) CALLA_ASSIGN_(lhs, expr, CALLA_CAT_(calla_result_, __LINE__))
#define CALLA_CAT_(a, b) CALLA_CAT2_(a, b)
#define CALLA_CAT2_(a, b) a##b
#define CALLA_ASSIGN_(lhs, expr, tmp)                                      \
  auto tmp = (expr);                                                       \
  if (!tmp) return tl::unexpected<::calla::Error>(std::move(tmp).error()); \
  lhs = std::move(*tmp)
