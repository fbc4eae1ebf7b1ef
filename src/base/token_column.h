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
  // These are ids, below 2^24, and log-probabilities of tokens that a teacher found likely, for
  // train.loss = "distill". A token that has fewer repeats its first id with -infinity.
  kTeacherIdColumn,
  kTeacherLogpColumn,
  kTokenColumns,
};

// Returns the numbers that each token has in a column, where lists of a teacher have
// `teacher_tokens`.
constexpr size_t width_of_column(size_t column, size_t teacher_tokens) {
  return column < kTeacherIdColumn ? 1 : teacher_tokens;
}

// By column: as many values for each token as the column is wide, or empty.
struct TokenColumns : std::array<std::vector<float>, kTokenColumns> {
  size_t teacher_tokens = 0;  // the width of both columns of a teacher
  // Returns the width of a column.
  size_t width_of(size_t column) const { return width_of_column(column, teacher_tokens); }
};

// The most that TokenColumns::teacher_tokens may be.
inline constexpr size_t kMostTeacherTokens = 1024;

// Returns the value of a token whose row lacks the column.
constexpr float default_of(size_t column) {
  return column == kWeightColumn ? 1.0f : 0.0f;
}

}  // namespace longshore
