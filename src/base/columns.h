// ColumnId, ColumnValues: the columns of a micro-batch (numbers of its tokens and documents), in
// one table that rows, token files, batches and units share. Plain values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace longshore {

// A column is added here: its id, and its row in kColumnTable. Rows of data are read by that row
// too where a loss needs the column.
enum ColumnId : uint8_t {
  // Numbers of tokens, from rows. A number belongs to the token that is to be predicted. Prepared
  // files list columns by these ids, which therefore never change.
  kWeightColumn,     // factor of the token's loss
  kAdvantageColumn,  // of an answer
  kOldLogpColumn,    // log-probability under the policy that wrote the answer
  // These are ids, below 2^24, and log-probabilities of tokens that a teacher found likely. A token
  // that has fewer repeats its first id with -infinity.
  kTeacherIdColumn,
  kTeacherLogpColumn,
  kTokenColumns,  // the number of those that files may have

  // A batch has these beside them; files have no such ids.
  kTokenIdColumn = kTokenColumns,
  kPositionColumn,       // of a token in its document, from 0
  kTargetColumn,         // the token to predict, -100: none is learned
  kDropoutKeyColumn,     // 64 random bits, from which dropout follows
  kDocumentColumn,       // the data set's number of a document
  kDesirableColumn,      // 0: an answer that people rejected
  kReferenceLogpColumn,  // of a document, under the reference model
  kKlColumn,             // of KTO: that of the whole step
  kChosenTokensColumn,   // the mean of trained tokens of the whole step's chosen answers
  kColumns,
};

// Each row of a column belongs to one of these.
enum class RowAxis : uint8_t {
  kTokens,
  kTrained,  // the tokens with a target, in order; in rows of data and in files all tokens
  kDocuments,
  kBatch,  // one row
};

// RowCounts: how many rows a micro-batch has on each axis.
struct RowCounts {
  int64_t tokens = 0, trained = 0, documents = 0;

  int64_t of(RowAxis axis) const {
    switch (axis) {
      case RowAxis::kTokens:
        return tokens;
      case RowAxis::kTrained:
        return trained;
      case RowAxis::kDocuments:
        return documents;
      case RowAxis::kBatch:
        return 1;
    }
    return 0;
  }
};

enum class ColumnType : uint8_t { kInt64, kFloat, kDouble };

// ColumnTraits: a row of the table.
struct ColumnTraits {
  std::string_view name;
  ColumnType type = ColumnType::kInt64;
  RowAxis axis = RowAxis::kTokens;
  // The member of a row of data with a number for each token, or for each with a loss.
  const char* member = nullptr;
  bool of_whole_row = false;  // or a row has one number for all its tokens, under the column's name
  bool of_teacher = false;    // each token has ColumnValues::teacher_tokens values, otherwise one
  float filled_with = 0.0f;   // what a token has whose row of data lacks the column
};

inline constexpr std::array<ColumnTraits, kColumns> kColumnTable = {{
    {"weight", ColumnType::kFloat, RowAxis::kTrained, "weights", true, false, 1.0f},
    {"advantage", ColumnType::kFloat, RowAxis::kTrained, "advantages", true},
    {"old_logp", ColumnType::kFloat, RowAxis::kTrained, "old_logps"},
    {"teacher_id", ColumnType::kFloat, RowAxis::kTrained, "teacher_ids", false, true},
    {"teacher_logp", ColumnType::kFloat, RowAxis::kTrained, "teacher_logps", false, true},
    {"token", ColumnType::kInt64, RowAxis::kTokens},
    {"position", ColumnType::kInt64, RowAxis::kTokens},
    {"target", ColumnType::kInt64, RowAxis::kTokens},
    {"dropout_key", ColumnType::kInt64, RowAxis::kTokens},
    {"document", ColumnType::kInt64, RowAxis::kDocuments},
    {"desirable", ColumnType::kInt64, RowAxis::kDocuments},
    {"reference_logp", ColumnType::kDouble, RowAxis::kDocuments},
    {"kl", ColumnType::kDouble, RowAxis::kBatch},
    {"chosen_tokens", ColumnType::kDouble, RowAxis::kBatch},
}};

// The type of a column's values.
template <ColumnId kColumn>
using ColumnValue = std::conditional_t<
    kColumnTable[kColumn].type == ColumnType::kInt64, int64_t,
    std::conditional_t<kColumnTable[kColumn].type == ColumnType::kFloat, float, double>>;

// Returns the values that each row has in a column, where lists of a teacher have `teacher_tokens`.
constexpr size_t width_of_column(size_t column, size_t teacher_tokens) {
  return kColumnTable[column].of_teacher ? teacher_tokens : 1;
}

// Returns the value of a token whose row lacks the column.
constexpr float default_of(size_t column) {
  return kColumnTable[column].filled_with;
}

// ColumnValues: by column as many values for each of its rows as the column is wide, or none.
class ColumnValues {
 public:
  ColumnValues() : ColumnValues(std::make_index_sequence<kColumns>()) {}

  size_t teacher_tokens = 0;  // the width of both columns of a teacher
  size_t width_of(size_t column) const { return width_of_column(column, teacher_tokens); }

  template <ColumnId kColumn>
  std::vector<ColumnValue<kColumn>>& get() {
    return std::get<std::vector<ColumnValue<kColumn>>>(values_[kColumn]);
  }
  template <ColumnId kColumn>
  const std::vector<ColumnValue<kColumn>>& get() const {
    return std::get<std::vector<ColumnValue<kColumn>>>(values_[kColumn]);
  }
  // Returns a column of floats, as all of files are.
  std::vector<float>& operator[](size_t column) {
    return std::get<std::vector<float>>(values_[column]);
  }
  const std::vector<float>& operator[](size_t column) const {
    return std::get<std::vector<float>>(values_[column]);
  }
  // Returns a column of integers.
  const std::vector<int64_t>& integers(size_t column) const {
    return std::get<std::vector<int64_t>>(values_[column]);
  }
  // Returns the number of values.
  size_t size_of(size_t column) const {
    return std::visit([](const auto& values) { return values.size(); }, values_[column]);
  }
  // Takes over a column of other values.
  void take(size_t column, const ColumnValues& from) { values_[column] = from.values_[column]; }

 private:
  using Values = std::variant<std::vector<int64_t>, std::vector<float>, std::vector<double>>;
  template <size_t... I>
  explicit ColumnValues(std::index_sequence<I...>)
      : values_{std::vector<ColumnValue<static_cast<ColumnId>(I)>>()...} {}

  std::array<Values, kColumns> values_;
};

// The most that ColumnValues::teacher_tokens may be.
inline constexpr size_t kMostTeacherTokens = 1024;

}  // namespace longshore
