#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace calla {

// The energy counters of the processor packages (RAPL, through the kernel's powercap interface). Many systems let only
// root read them, and virtual machines have none: then there are no figures.
class EnergyMeter {
 public:
  // A counter for each package, in µJ; empty where they cannot be read.
  using Reading = std::vector<uint64_t>;

  explicit EnergyMeter(std::filesystem::path root = "/sys/class/powercap");
  Reading read() const;
  // Joules from one reading to the next. Counters start again at 0 after their range, which takes many minutes; a
  // stretch may hold one such start.
  std::optional<double> joules(const Reading& from, const Reading& to) const;

 private:
  struct Package {
    std::filesystem::path counter;
    uint64_t range;
  };
  std::vector<Package> packages_;
};

}  // namespace calla
