// FNV-1a over the four bytes of each number, as in this folder's scripts. Test code; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/hash.h"
#include "text/tokenizer.h"

namespace longshore {

inline constexpr uint64_t kFnvBasis = 0xCBF29CE484222325;

inline uint64_t fnv(uint64_t state, uint32_t number) {
  for (int byte = 0; byte < 4; ++byte) {
    state = (state ^ ((number >> (8 * byte)) & 0xff)) * 0x100000001B3;
  }
  return state;
}

inline std::string digest_of_ids(std::span<const TokenId> ids) {
  uint64_t state = kFnvBasis;
  for (const TokenId id : ids) state = fnv(state, static_cast<uint32_t>(id));
  return hash_text(state);
}

}  // namespace longshore
