// TokenColumn: the numbers that rows may have for each of their tokens. Plain values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace longshore {

// A number belongs to the token that is to be predicted. Prepared files list columns by these
// numbers, which therefore never change.
enum TokenColumn : uint8_t {
  kWeightColumn,     // factor of the token's loss
  kAdvantageColumn,  // of an answer, for train.loss = "policy"
  kOldLogpColumn,    // log-probability under the policy that wrote the answer
  kTokenColumns,
};

// By column: one value for each token, or empty.
using TokenColumns = std::array<std::vector<float>, kTokenColumns>;

// Returns the value of a token whose row lacks the column.
constexpr float default_of(size_t column) {
  return column == kWeightColumn ? 1.0f : 0.0f;
}

}  // namespace longshore
