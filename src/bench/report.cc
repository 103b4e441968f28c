#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "base/progress.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

// Three figures: 9.71, 35.2, 410.
std::string figure(double v) {
  return fmt::format("{:.{}f}", v, v < 10 ? 2 : v < 100 ? 1 : 0);
}

std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

std::string energy(const BenchSummary& s) {
  return s.decode_joules ? figure(*s.decode_joules) : "-";
}

std::string head(const BenchReport& r) {
  const double read = r.ceilings.read / 1e9, matrix = r.ceilings.matrix / 1e9;
  std::string loads;
  for (const double s : r.load_seconds) loads += fmt::format("{}{:.2f} s", loads.empty() ? "" : ", ", s);
  return fmt::format(
      "machine    {}, {}, {} kernels\n"
      "ceilings   reading {:.1f} GB/s, {} {:.0f} GMAC/s\n"
      "model      {}, {}, {:.1f} MB and {:.1f} MMAC a token, fingerprint {}\n"
      "loading    {}\n"
      "memory     {} at most, {} of it anonymous\n",
      r.machine.processor, r.machine.units(), r.machine.isa, read, r.ceilings.numbers, matrix, r.model.name,
      format_bytes(r.model.bytes), double(r.model.bytes_per_token) / 1e6, double(r.model.macs_per_token) / 1e6,
      r.model.fingerprint.substr(0, 8), loads, format_bytes(r.peak.total), format_bytes(r.peak.anonymous));
}

std::string table(const BenchReport& r) {
  std::string out = fmt::format("\n{:>13} {:>13} {:>10} {:>12} {:>12} {:>10} {:>8}  {}\n", "context", "prefill tok/s",
                                "of ceiling", "first token", "decode tok/s", "of ceiling", "J/token", "tokens");
  for (const BenchResult& row : r.results) {
    const BenchSummary& s = row.summary;
    out +=
        fmt::format("{:>13} {:>13} {:>10} {:>12} {:>12} {:>10} {:>8}  {}{}\n", row.row.name(), figure(s.prefill_rate),
                    percent(s.prefill_rate / row.prefill_ceiling(r.ceilings)), figure(s.first_token_seconds) + " s",
                    figure(s.decode_rate), percent(s.decode_rate / row.decode_ceiling(r.ceilings)), energy(s),
                    row.rounds.front().digest.substr(0, 8), s.refused.empty() ? "" : "  REFUSED: " + s.refused);
  }
  return out;
}

std::string ratios(const BenchReport& r) {
  const auto cells = [](double ours, double theirs) {
    return theirs > 0 ? fmt::format("{:>13} {:>7}", figure(theirs), fmt::format("{:.2f}", ours / theirs))
                      : fmt::format("{:>13} {:>7}", "-", "-");
  };
  std::string out = fmt::format("\n{:>13} {:>13} {:>7} {:>13} {:>7}   (the peer, and ours / the peer's)\n", "context",
                                "prefill tok/s", "ratio", "decode tok/s", "ratio");
  bool any = false;
  for (const BenchResult& row : r.results) {
    const PeerRates peer = peer_rates(r.peer_tests, row.row);
    any = any || peer.prefill > 0 || peer.decode > 0;
    out += fmt::format("{:>13} {} {}{}\n", row.row.name(), cells(row.summary.prefill_rate, peer.prefill),
                       cells(row.summary.decode_rate, peer.decode), row.summary.refused.empty() ? "" : "  REFUSED");
  }
  if (any) return out;
  // Nothing can be compared: say what there was, a test of each shape once.
  std::set<std::string> shapes;
  for (const PeerTest& t : r.peer_tests) {
    shapes.insert(fmt::format("{} {} at {}", t.kind == PeerTest::Kind::kPrefill ? "prefill" : "decode",
                              format_count(t.tokens), format_count(t.depth)));
  }
  return out + fmt::format("the peer measured other shapes: {}\n", fmt::join(shapes, ", "));
}

Profile sum(const std::vector<BenchRound>& rounds, Profile BenchRound::*verbs) {
  Profile all;
  for (const BenchRound& round : rounds) {
    for (const VerbCost& v : (round.*verbs).verbs) all.add(v);
  }
  std::ranges::stable_sort(all.verbs, std::greater(), &VerbCost::seconds);
  return all;
}

double sum(const std::vector<BenchRound>& rounds, double BenchRound::*seconds) {
  double all = 0;
  for (const BenchRound& round : rounds) all += round.*seconds;
  return all;
}

std::string verb_name(const VerbCost& v) {
  return v.in == 0 ? std::string(v.verb) : fmt::format("{} {} → {}", v.verb, v.in, v.out);
}

// `seconds`: of the phase in all.
std::string verbs(std::string_view title, const Profile& profile, double seconds) {
  std::string out = fmt::format("\n{:<24} {:>8} {:>10} {:>6} {:>9} {:>8} {:>9} {:>8}\n", title, "calls", "seconds", "",
                                "GB", "GB/s", "GMAC", "GMAC/s");
  const auto line = [&](const std::string& name, const std::string& calls, double spent, double bytes, double macs) {
    const auto cell = [](double v, int digits) { return v > 0 ? fmt::format("{:.{}f}", v / 1e9, digits) : "-"; };
    out += fmt::format("{:<24} {:>8} {:>10.4f} {:>6} {:>9} {:>8} {:>9} {:>8}\n", name, calls, spent,
                       percent(spent / seconds), cell(bytes, 3), cell(bytes / spent, 1), cell(macs, 2),
                       cell(macs / spent, 1));
  };
  double spent = 0, bytes = 0, macs = 0;
  for (const VerbCost& v : profile.verbs) {
    line(verb_name(v), format_count(v.calls), v.seconds, double(v.bytes), double(v.macs));
    spent += v.seconds;
    bytes += double(v.bytes);
    macs += double(v.macs);
  }
  line("all verbs", "", spent, bytes, macs);
  return out + fmt::format("{:<24} {:>8} {:>10.4f} {:>6}\n", "between them", "", seconds - spent,
                           percent((seconds - spent) / seconds));
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const Profile& profile) {
  Json out = Json::array();
  for (const VerbCost& v : profile.verbs) {
    out.push_back({{"verb", v.verb},
                   {"in", v.in},
                   {"out", v.out},
                   {"calls", v.calls},
                   {"seconds", v.seconds},
                   {"bytes", v.bytes},
                   {"macs", v.macs}});
  }
  return out;
}

Json json_of(const std::vector<BenchRound>& rounds) {
  Json out = Json::array();
  for (const BenchRound& r : rounds) {
    out.push_back({{"prefill_seconds", r.prefill_seconds},
                   {"first_token_seconds", r.first_token_seconds},
                   {"decode_seconds", r.decode_seconds},
                   {"prefill_joules", or_null(r.prefill_joules)},
                   {"decode_joules", or_null(r.decode_joules)},
                   {"digest", r.digest},
                   {"anonymous_bytes", r.memory.anonymous},
                   {"total_bytes", r.memory.total}});
  }
  return out;
}

Json json_of(const BenchRow& row) {
  return {{"depth", row.depth}, {"prompt", row.prompt}, {"steps", row.steps}, {"decode_depth", row.decode_depth()}};
}

Json json_of(const BenchResult& r, const BenchReport& report) {
  const BenchSummary& s = r.summary;
  Json out = json_of(r.row);
  out["refused"] = s.refused.empty() ? Json() : Json(s.refused);
  out["prefill"] = {{"tokens_per_second", s.prefill_rate},
                    {"spread", s.prefill_spread},
                    {"macs", r.cost.prefill_macs},
                    {"ceiling_tokens_per_second", r.prefill_ceiling(report.ceilings)},
                    {"share_of_ceiling", s.prefill_rate / r.prefill_ceiling(report.ceilings)},
                    {"joules_per_token", or_null(s.prefill_joules)}};
  out["decode"] = {{"tokens_per_second", s.decode_rate},
                   {"spread", s.decode_spread},
                   {"bytes_per_token", r.cost.decode_bytes},
                   {"ceiling_tokens_per_second", r.decode_ceiling(report.ceilings)},
                   {"share_of_ceiling", s.decode_rate / r.decode_ceiling(report.ceilings)},
                   {"joules_per_token", or_null(s.decode_joules)}};
  out["first_token_seconds"] = s.first_token_seconds;
  out["rounds"] = json_of(r.rounds);
  out["warm_ups"] = json_of(r.warm_ups);
  if (report.profiled) {
    out["profile"] = {{"prefill", json_of(sum(r.rounds, &BenchRound::prefill_verbs))},
                      {"decode", json_of(sum(r.rounds, &BenchRound::decode_verbs))}};
  }
  if (!report.peer.empty()) {
    const PeerRates peer = peer_rates(report.peer_tests, r.row);
    const auto ratio = [](double ours, double theirs) { return theirs > 0 ? Json(ours / theirs) : Json(); };
    out["peer_ratio"] = {{"prefill", ratio(s.prefill_rate, peer.prefill)},
                         {"decode", ratio(s.decode_rate, peer.decode)}};
  }
  return out;
}

Json json_of(const ModelConfig& c) {
  return {{"layers", c.layers},
          {"attention_layers", c.attention_layers()},
          {"hidden", c.hidden},
          {"vocabulary", c.vocab},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"key_heads", c.k_heads},
          {"value_heads", c.v_heads},
          {"experts", c.experts},
          {"experts_per_token", c.top_k},
          {"expert_width", c.expert_width},
          {"shared_width", c.shared_width},
          {"bits", c.quantization.bits}};
}

}  // namespace

std::string BenchReport::Machine::units() const {
  return fmt::format("{} {}{}", threads, unit, threads == 1 ? "" : "s");
}

int BenchReport::refused() const {
  return static_cast<int>(std::ranges::count_if(results, [](const auto& r) { return !r.summary.refused.empty(); }));
}

std::string report_text(const BenchReport& r) {
  std::string out = head(r) + table(r);
  if (!r.skipped.empty()) {
    out += fmt::format("left out for their time: {} to {} (--minutes 0, or --contexts, asks for them)\n",
                       r.skipped.front().name(), r.skipped.back().name());
  }
  if (!r.peer.empty()) out += ratios(r);
  if (r.profiled) {
    for (const BenchResult& row : r.results) {
      out += verbs(row.row.name() + ", prefill", sum(row.rounds, &BenchRound::prefill_verbs),
                   sum(row.rounds, &BenchRound::prefill_seconds));
      out += verbs(row.row.name() + ", decode", sum(row.rounds, &BenchRound::decode_verbs),
                   sum(row.rounds, &BenchRound::decode_seconds));
    }
  }
  return out;
}

std::string report_json(const BenchReport& r) {
#ifdef NDEBUG
  constexpr bool kAssertions = false;
#else
  constexpr bool kAssertions = true;
#endif
  Json out;
  out["format"] = "calla bench 1";
  out["build"] = {
      {"version", r.build.version}, {"compiler", __VERSION__}, {"assertions", kAssertions}, {"sha256", r.build.sha256}};
  out["machine"] = {{"processor", r.machine.processor},
                    {"isa", r.machine.isa},
                    {r.machine.unit + "s", r.machine.threads},
                    {"memory_bytes", r.machine.memory}};
  out["model"] = {{"name", r.model.name},
                  {"fingerprint", r.model.fingerprint},
                  {"bytes", r.model.bytes},
                  {"bytes_per_token", r.model.bytes_per_token},
                  {"macs_per_token", r.model.macs_per_token},
                  {"shape", json_of(r.model.config)}};
  out["ceilings"] = {{"read_bytes_per_second", r.ceilings.read},
                     {r.ceilings.numbers + "_macs_per_second", r.ceilings.matrix}};
  out["tolerance"] = r.tolerance;
  out["load_seconds"] = r.load_seconds;
  out["peak_memory"] = {{"anonymous_bytes", r.peak.anonymous}, {"total_bytes", r.peak.total}};
  out["rows"] = Json::array();
  for (const BenchResult& row : r.results) out["rows"].push_back(json_of(row, r));
  out["skipped"] = Json::array();
  for (const BenchRow& row : r.skipped) out["skipped"].push_back(json_of(row));
  if (!r.peer.empty()) {
    out["peer"] = {{"command", r.peer}, {"tests", Json::array()}};
    for (const PeerTest& t : r.peer_tests) {
      out["peer"]["tests"].push_back({{"kind", t.kind == PeerTest::Kind::kPrefill ? "prefill" : "decode"},
                                      {"tokens", t.tokens},
                                      {"depth", t.depth},
                                      {"tokens_per_second", t.rates}});
    }
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace calla
