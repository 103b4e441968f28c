#pragma once

namespace calla {

// Sizes that the kernels are written for. Everything else (layers, widths, heads, experts, vocabulary) is read from the
// config.
inline constexpr int kHeadDim = 256;  // attention head: query, gate, key, value
inline constexpr int kRotary = 64;    // leading dims of a query or key that RoPE turns
inline constexpr int kGdnDim = 128;   // delta-net head: key and value side
inline constexpr int kConvTaps = 4;   // causal depthwise convolution before the delta rule
inline constexpr int kMaxTopK = 16;   // experts per token, at most (the model uses 8)

}  // namespace calla
