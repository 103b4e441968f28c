#include "bench/energy.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>

namespace calla {
namespace {

namespace fs = std::filesystem;

template <class T>
std::optional<T> read_value(const fs::path& path) {
  std::ifstream file(path);
  T value{};
  return file >> value ? std::optional<T>(value) : std::nullopt;
}

}  // namespace

EnergyMeter::EnergyMeter(fs::path root) {
  std::error_code error;
  for (auto it = fs::directory_iterator(root, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    const auto name = read_value<std::string>(it->path() / "name");
    const auto range = read_value<uint64_t>(it->path() / "max_energy_range_uj");
    // The packages hold everything else (cores, memory) as zones of their own.
    if (name && range && name->starts_with("package")) packages_.push_back({it->path() / "energy_uj", *range});
  }
}

EnergyMeter::Reading EnergyMeter::read() const {
  Reading reading;
  for (const Package& package : packages_) {
    const auto value = read_value<uint64_t>(package.counter);
    if (!value) return {};
    reading.push_back(*value);
  }
  return reading;
}

std::optional<double> EnergyMeter::joules(const Reading& from, const Reading& to) const {
  if (from.empty() || from.size() != to.size()) return std::nullopt;
  double sum = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t moved = to[i] >= from[i] ? to[i] - from[i] : to[i] + packages_[i].range - from[i];
    sum += static_cast<double>(moved) / 1e6;
  }
  return sum;
}

}  // namespace calla
