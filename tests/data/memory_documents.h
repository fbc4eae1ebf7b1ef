// documents_of_lengths(), random_lengths(): made-up datasets for this folder. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "base/random.h"
#include "data/tokens/dataset.h"

namespace longshore {

// Makes one document per length with all tokens trained; token t of document d is 1000 * d + t.
inline InMemoryDataset documents_of_lengths(std::span<const int64_t> lengths) {
  InMemoryDataset dataset;
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<TokenId> tokens;
    for (int64_t t = 0; t < lengths[d]; ++t) {
      tokens.push_back(static_cast<TokenId>(1000 * d + static_cast<size_t>(t)));
    }
    dataset.add(tokens, tokens);
  }
  return dataset;
}

// Returns random lengths from 2 to max_tokens, most of them short.
inline std::vector<int64_t> random_lengths(int64_t documents, int64_t max_tokens, uint32_t seed) {
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < documents; ++d) {
    const auto random = philox4x32({static_cast<uint32_t>(d), 0, 0, 0}, {seed, 0});
    const double fraction = random[0] / 4294967296.0;
    lengths.push_back(2 + static_cast<int64_t>(fraction * fraction * fraction *
                                               static_cast<double>(max_tokens - 1)));
  }
  return lengths;
}

}  // namespace longshore
