#include "quant/affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace calla {
namespace {

using Codes = std::array<uint8_t, kGroup>;

// Codes of w at a scale and bias: the nearest whole number, halves away from zero as Metal's round() does, at most
// `top`. In the rule nothing lies below zero. Written with a truncation so that the loop becomes vector code; the
// fraction is exact.
void encode(std::span<const float, kGroup> w, float scale, float bias, int top, uint8_t* codes) {
  for (int i = 0; i < kGroup; ++i) {
    const float steps = (w[i] - bias) / scale;
    const float x = steps > 0.0f ? std::min(steps, static_cast<float>(top)) : 0.0f;
    const int whole = static_cast<int>(x);
    codes[i] = static_cast<uint8_t>(whole + (x - static_cast<float>(whole) >= 0.5f ? 1 : 0));
  }
}

double squared_error(std::span<const float, kGroup> w, double scale, double bias, const uint8_t* codes) {
  double sum = 0;
  for (int i = 0; i < kGroup; ++i) {
    const double e = scale * codes[i] + bias - w[i];
    sum += e * e;
  }
  return sum;
}

// The bf16 values on both sides of x; both are x where it is representable.
std::array<float, 2> neighbours(double x) {
  const float near = to_f32(to_bf16(static_cast<float>(x)));
  if (static_cast<double>(near) == x || near == 0.0f) return {near, near};
  const bool away = (std::abs(near) < std::abs(x));  // the other neighbour has the larger magnitude
  const bf16 bits = to_bf16(near);
  return {near, to_f32({static_cast<uint16_t>(away ? bits.bits + 1 : bits.bits - 1)})};
}

// Sums over a group with given codes: the squared error is a quadratic in scale and bias.
struct Fit {
  double w = 0, ww = 0, q = 0, qq = 0, qw = 0;
  Fit(std::span<const float, kGroup> values, const uint8_t* codes) {
    for (int i = 0; i < kGroup; ++i) {
      const double x = values[i], c = codes[i];
      w += x;
      ww += x * x;
      q += c;
      qq += c * c;
      qw += c * x;
    }
  }
  double error(double s, double b) const {
    return ww - 2 * s * qw - 2 * b * w + s * s * qq + 2 * s * b * q + kGroup * b * b;
  }
  // The bf16 pair of least error near the real optimum. The bias is the coarser of the two (it is the larger number),
  // so it is rounded first, both ways, and the scale is fitted again to what came out.
  std::array<float, 2> best() const {
    const double spread = kGroup * qq - q * q;  // 0 when all codes are equal
    const double s = spread > 0 ? (kGroup * qw - q * w) / spread : 0.0;
    std::array<float, 2> pair{};
    double least = std::numeric_limits<double>::infinity();
    for (const float bias : neighbours((w - s * q) / kGroup)) {
      for (const float scale : neighbours(qq > 0 ? (qw - bias * q) / qq : 0.0)) {
        if (const double e = error(scale, bias); e < least) {
          least = e;
          pair = {scale, bias};
        }
      }
    }
    return pair;
  }
};

}  // namespace

AffineGroup quantize_group(std::span<const float, kGroup> w, int bits) {
  DCHECK(bits == 4 || bits == 8, "only 4 and 8 bits exist");
  const int top = (1 << bits) - 1;
  float min = std::numeric_limits<float>::max();
  float max = 0.0f;  // not the least value: a group below zero is given the range up to zero
  for (const float x : w) {
    min = x < min ? x : min;
    max = x > max ? x : max;
  }
  const bool low_edge = std::abs(min) > std::abs(max);
  const float edge = low_edge ? min : max;
  float scale = std::max((max - min) / static_cast<float>(top), 1e-7f);
  if (!low_edge) scale = -scale;
  float bias = 0.0f;
  if (const float steps = std::round(edge / scale); steps != 0.0f) {
    scale = edge / steps;
    bias = edge;
  }
  AffineGroup group{to_bf16(scale), to_bf16(bias), {}};
  encode(w, scale, bias, top, group.codes);
  return group;
}

AffineGroup search_group(std::span<const float, kGroup> w, int bits) {
  constexpr int kRounds = 6;
  const int top = (1 << bits) - 1;
  AffineGroup best = quantize_group(w, bits);
  double least = squared_error(w, to_f32(best.scale), to_f32(best.bias), best.codes);

  const auto [low, high] = std::minmax_element(w.begin(), w.end());
  const float range = *high - *low;
  // Starts: the rule itself, then the whole range and ranges with their outer parts cut off, whose codes saturate.
  for (const float cut : {-1.0f, 0.0f, 0.04f, 0.08f, 0.12f, 0.16f}) {
    float scale = cut < 0 ? to_f32(best.scale) : range * (1 - 2 * cut) / static_cast<float>(top);
    float bias = cut < 0 ? to_f32(best.bias) : *low + range * cut;
    double last = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      if (scale == 0.0f || !std::isfinite(scale) || !std::isfinite(bias)) break;
      Codes codes;
      encode(w, scale, bias, top, codes.data());
      const auto pair = Fit(w, codes.data()).best();
      const double error = squared_error(w, pair[0], pair[1], codes.data());
      if (error < least) {
        least = error;
        best.scale = to_bf16(pair[0]);
        best.bias = to_bf16(pair[1]);
        std::copy(codes.begin(), codes.end(), best.codes);
      }
      if (error >= last) break;
      last = error;
      scale = pair[0];
      bias = pair[1];
    }
  }
  return best;
}

void pack_codes(std::span<const uint8_t, kGroup> codes, int bits, uint32_t* words) {
  const int per_word = 32 / bits;
  for (int i = 0; i < kGroup / per_word; ++i) {
    uint32_t word = 0;
    for (int j = 0; j < per_word; ++j) word |= uint32_t{codes[i * per_word + j]} << (bits * j);
    words[i] = word;
  }
}

void unpack_codes(const uint32_t* words, int bits, std::span<uint8_t, kGroup> codes) {
  const int per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  for (int i = 0; i < kGroup; ++i)
    codes[i] = static_cast<uint8_t>(words[i / per_word] >> (bits * (i % per_word)) & mask);
}

}  // namespace calla
