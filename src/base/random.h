// Random numbers: two counter-based generators, which store no state and compute any element
// directly, and unpredictable bits for names and keys. Pure but for the last; any thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace longshore {

// Philox4x32-10: a counter-based random generator. It stores no state and computes any element
// directly. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Pure.

struct PhiloxKey {
  uint32_t low = 0, high = 0;
};

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key.low,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key.high,
               static_cast<uint32_t>(product0)};
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return counter;
}

// ARS4x32: a counter-based random generator built from AES rounds. It stores no state and computes
// any element directly. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011. Its authors default to 7 rounds; 5 already pass BigCrush. Pure function, any thread.
//
// It exists in addition to Philox because CPUs execute an AES round in hardware: 8 instructions
// yield 128 bits, or 512 bits with AES on wide vectors. This file is the portable form.

struct ArsKey {
  uint64_t low = 0, high = 0;
};
inline constexpr int kArsRounds = 7;
// The key grows by this step before each round.
inline constexpr ArsKey kArsKeyStep = {0x9E3779B97F4A7C15u, 0xBB67AE8584CAA73Bu};

namespace internal {

// Builds the AES S-box by iterating over the powers of 3 and of its inverse.
constexpr std::array<uint8_t, 256> make_aes_sbox() {
  std::array<uint8_t, 256> box{};
  box[0] = 0x63;
  uint8_t power = 1;
  uint8_t inverse = 1;
  do {
    power = static_cast<uint8_t>(power ^ (power << 1) ^ (power >= 0x80 ? 0x1b : 0));
    inverse = static_cast<uint8_t>(inverse ^ (inverse << 1));
    inverse = static_cast<uint8_t>(inverse ^ (inverse << 2));
    inverse = static_cast<uint8_t>(inverse ^ (inverse << 4));
    if (inverse >= 0x80) inverse ^= 0x09;
    box[power] = static_cast<uint8_t>(inverse ^ std::rotl(inverse, 1) ^ std::rotl(inverse, 2) ^
                                      std::rotl(inverse, 3) ^ std::rotl(inverse, 4) ^ 0x63);
  } while (power != 1);
  return box;
}
inline constexpr std::array<uint8_t, 256> kAesSbox = make_aes_sbox();

// Each entry is the S-box value times 2, 1, 1, 3: one byte's contribution to its column.
constexpr std::array<uint32_t, 256> make_aes_columns() {
  std::array<uint32_t, 256> columns{};
  for (size_t i = 0; i < columns.size(); ++i) {
    const uint32_t once = kAesSbox[i];
    const uint32_t twice = (once << 1 ^ (once >= 0x80 ? 0x1bu : 0u)) & 0xffu;
    columns[i] = twice | once << 8 | once << 16 | (once ^ twice) << 24;
  }
  return columns;
}
inline constexpr std::array<uint32_t, 256> kAesColumns = make_aes_columns();

}  // namespace internal

template <int kRounds = kArsRounds>
std::array<uint32_t, 4> ars4x32(std::array<uint32_t, 4> counter, ArsKey key) {
  const auto add_key = [&key](std::array<uint32_t, 4>& state) {
    state[0] ^= static_cast<uint32_t>(key.low);
    state[1] ^= static_cast<uint32_t>(key.low >> 32);
    state[2] ^= static_cast<uint32_t>(key.high);
    state[3] ^= static_cast<uint32_t>(key.high >> 32);
    key.low += kArsKeyStep.low;
    key.high += kArsKeyStep.high;
  };
  add_key(counter);
  for (int round = 1; round <= kRounds; ++round) {
    std::array<uint32_t, 4> next{};
    for (size_t column = 0; column < 4; ++column) {
      for (size_t row = 0; row < 4; ++row) {
        const uint32_t byte = counter[(column + row) % 4] >> (8 * row) & 0xffu;
        const uint32_t part = round < kRounds ? internal::kAesColumns[byte]
                                              : static_cast<uint32_t>(internal::kAesSbox[byte]);
        next[column] ^= std::rotl(part, static_cast<int>(8 * row));
      }
    }
    add_key(next);
    counter = next;
  }
  return counter;
}

// random_word: 64 unpredictable bits for keys and unique names. No result of a run may depend on
// them. Any thread.

uint64_t random_word();

}  // namespace longshore
