// docs/openapi.yaml describes the routes that there are, and no others.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "base/file.h"
#include "tests/server/whole_server.h"

namespace calla {
namespace {

// "POST /v1/messages" and so on: the keys of two and of four spaces below `paths:`.
std::set<std::string> described(std::string_view yaml) {
  std::set<std::string> out;
  std::istringstream lines{std::string(yaml.substr(yaml.find("\npaths:\n") + 8))};
  std::string path;
  for (std::string line; std::getline(lines, line);) {
    const size_t indent = line.find_first_not_of(' ');
    const size_t colon = line.find(':', indent == std::string::npos ? 0 : indent);
    if (indent == 0) break;
    if (indent == 2) path = line.substr(2, colon - 2);
    if (indent != 4 || line.starts_with("    parameters:")) continue;
    std::string method = line.substr(4, colon - 4);
    std::transform(method.begin(), method.end(), method.begin(), [](unsigned char c) { return std::toupper(c); });
    out.insert(method + " " + path);
  }
  return out;
}

TEST_F(WholeServer, IsWhatOpenApiDescribes) {
  const auto routes = router_.routes();
  const auto yaml = read_file(CALLA_SOURCE_DIR "/docs/openapi.yaml");
  ASSERT_TRUE(yaml) << yaml.error().message;
  EXPECT_EQ(described(*yaml), std::set<std::string>(routes.begin(), routes.end()));
}

}  // namespace
}  // namespace calla
