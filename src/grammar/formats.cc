#include "grammar/formats.h"

namespace calla {
namespace {

#define CALLA_DATE                                                                                                    \
  "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))" \
  "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define CALLA_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define CALLA_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define CALLA_IPV4 CALLA_BYTE "(\\." CALLA_BYTE "){3}"
#define CALLA_H16 "[0-9a-fA-F]{1,4}"
#define CALLA_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,56}[a-zA-Z0-9])?"

constexpr struct {
  std::string_view format, pattern;
} kPatterns[] = {
    {"date", "^" CALLA_DATE "$"},
    {"time", "^" CALLA_TIME "$"},
    {"date-time", "^" CALLA_DATE "T" CALLA_TIME "$"},
    {"duration",
     "^P([0-9]{1,9}W|([0-9]{1,9}Y([0-9]{1,9}M)?([0-9]{1,9}D)?|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}D)"
     "(T([0-9]{1,9}H([0-9]{1,9}M)?([0-9]{1,9}S)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S))?"
     "|T([0-9]{1,9}H([0-9]{1,9}M)?([0-9]{1,9}S)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S))$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"email",
     "^[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+)*@"
     "([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\\.)+[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$"},
    {"hostname", "^" CALLA_LABEL "(\\." CALLA_LABEL "){0,3}$"},
    {"ipv4", "^" CALLA_IPV4 "$"},
    {"ipv6", "^((" CALLA_H16 ":){7}" CALLA_H16 "|(" CALLA_H16 ":){1,7}:|(" CALLA_H16 ":){1,6}:" CALLA_H16 "|(" CALLA_H16
             ":){1,5}(:" CALLA_H16 "){1,2}|(" CALLA_H16 ":){1,4}(:" CALLA_H16 "){1,3}|(" CALLA_H16 ":){1,3}(:" CALLA_H16
             "){1,4}|(" CALLA_H16 ":){1,2}(:" CALLA_H16 "){1,5}|" CALLA_H16 ":(:" CALLA_H16 "){1,6}|:(:" CALLA_H16
             "){1,7}|::)$"},
};

}  // namespace

std::string_view format_pattern(std::string_view format) {
  for (const auto& known : kPatterns) {
    if (known.format == format) return known.pattern;
  }
  return {};
}

}  // namespace calla
