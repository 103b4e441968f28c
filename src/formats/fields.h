#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace calla {

// Reads the fields of one JSON object. The first thing that is wrong is kept and every later read returns a harmless
// value, so a table of reads needs one check at its end. A key whose value is null counts as absent. Internal to
// formats/.
class Fields {
 public:
  // `path` comes before each key in messages: "text_config.".
  Fields(const nlohmann::json& object, std::string path, std::optional<Error>& error)
      : object_(object), path_(std::move(path)), error_(error) {}

  // The value of a key, or null if it is absent.
  const nlohmann::json* find(std::string_view key) const;
  // An integer in [min, max]; without a fallback the key must be there.
  int integer(std::string_view key, std::optional<int> fallback, int min, int max);
  // As integer(), and a multiple of 64.
  int width(std::string_view key, int max);
  double real(std::string_view key, double fallback, double min, double max);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  // An id or a list of ids, each in [0, INT32_MAX]; absent gives none.
  std::vector<int32_t> ids(std::string_view key);
  // An object, or null if absent.
  const nlohmann::json* object(std::string_view key);

  // Demands that a key, where present, has the one value that the engine is written for.
  void only(std::string_view key, bool supported);
  void only(std::string_view key, const char* supported);
  void only(std::string_view key, int supported);

  // Keeps the first error: "text_config.KEY WHAT".
  void refuse(std::string_view key, std::string_view what, Error::Code code = Error::Code::kInvalid);

 private:
  void wrong_type(std::string_view key, std::string_view expected);
  const nlohmann::json& object_;
  std::string path_;
  std::optional<Error>& error_;
};

}  // namespace calla
