// The part of RowFormat that reads columns: numbers of single tokens, and the tokens that a teacher
// found likely.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "data/rows/row_format.h"
#include "data/tokens/dataset.h"

namespace longshore {
namespace {

// The elements of an array that belong to tokens with a loss: it has one for each token, or one for
// each of these. Throws RowProblem for another number, or for another value.
class TrainedElements {
 public:
  TrainedElements(const Json& values, const std::string& key, const Document& document)
      : every_(values.is_array() && values.size() == document.labels.size()) {
    if (!values.is_array()) {
      throw RowProblem(key + ": expected an array of numbers, found " + article_and_type(values));
    }
    for (size_t t = 1; t < document.labels.size(); ++t) {
      if (document.labels[t] != kNotTrained) tokens_.push_back(t);
    }
    if (!every_ && values.size() != tokens_.size()) {
      throw RowProblem(key + ": " + std::to_string(values.size()) + " of them for " +
                       std::to_string(document.labels.size()) + " input_ids, " +
                       std::to_string(tokens_.size()) + " with a loss");
    }
  }
  // Calls use(token, element's index) in order.
  void each(const std::function<void(size_t, size_t)>& use) const {
    for (size_t i = 0; i < tokens_.size(); ++i) use(tokens_[i], every_ ? tokens_[i] : i);
  }

 private:
  std::vector<size_t> tokens_;
  bool every_;  // the array has one for each token
};

// Returns the member; null if the row lacks it or has null there.
const Json* member_of(const Json& row, const std::string& key) {
  const auto member = row.find(key);
  return member == row.end() || member->is_null() ? nullptr : &*member;
}

// A sum of probabilities that were rounded to 16 bits may be so far above 1, and is divided by
// itself then.
constexpr double kMostProbability = 1.01;
// The ids are kept as float32, which has all integers below this one.
constexpr int64_t kMostIds = int64_t{1} << 24;

// Returns finite log-probabilities whose probabilities have a sum of at most 1.
std::vector<float> read_logps(const Json& values, const std::string& place, size_t count) {
  if (!values.is_array() || values.size() != count) {
    throw RowProblem(
        place + ": expected an array of " + std::to_string(count) +
        " log-probabilities, one for each id, found " +
        (values.is_array() ? std::to_string(values.size()) + " values" : article_and_type(values)));
  }
  std::vector<float> logps;
  double sum = 0.0;
  for (size_t i = 0; i < count; ++i) {
    logps.push_back(read_number(values[i], place_of(place, i), /*not_negative=*/false));
    const double probability = std::exp(static_cast<double>(logps.back()));
    if (probability > kMostProbability) {
      throw RowProblem(place_of(place, i) + ": " + values[i].dump() +
                       " is above 0, which is no log-probability");
    }
    sum += probability;
  }
  if (sum > kMostProbability) {
    throw RowProblem(place + ": the probabilities have a sum of " + std::to_string(sum) +
                     ", more than 1");
  }
  if (sum > 1.0) {
    for (float& logp : logps) logp -= static_cast<float>(std::log(sum));
  }
  return logps;
}

// Writes the ids and log-probabilities of a token to its places in the columns.
void read_tokens_of_teacher(const Json& ids, const std::string& id_place, const Json& logps,
                            const std::string& logp_place, const RowFormatOptions& options,
                            size_t token, ColumnValues& columns) {
  const std::vector<TokenId> known = read_ids(ids, id_place, options.model_vocabulary_size);
  const size_t width = columns.teacher_tokens;
  if (known.empty()) throw RowProblem(id_place + ": the array is empty");
  if (known.size() > width) {
    throw RowProblem(id_place + ": " + std::to_string(known.size()) +
                     " tokens, more than distill.top_k = " + std::to_string(width) +
                     "; raise it, or leave out the least likely ones");
  }
  std::vector<TokenId> sorted = known;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    throw RowProblem(id_place + ": has the token " + std::to_string(*twice) + " twice");
  }
  const std::vector<float> values = read_logps(logps, logp_place, known.size());
  for (size_t i = 0; i < width; ++i) {
    const bool has = i < known.size();
    columns[kTeacherIdColumn][token * width + i] = static_cast<float>(known[has ? i : 0]);
    columns[kTeacherLogpColumn][token * width + i] =
        has ? values[i] : -std::numeric_limits<float>::infinity();
  }
}

// Sets the columns of a teacher from a row's "teacher_ids" and "teacher_logps": lists of up to
// RowFormatOptions::teacher_tokens for each token, or for each token with a loss.
void read_teacher(const Json& row, const RowFormatOptions& options, Document& document) {
  const std::string id_key = options.name_of("teacher_ids");
  const std::string logp_key = options.name_of("teacher_logps");
  const Json& ids = required_member(row, id_key);
  const Json& logps = required_member(row, logp_key);
  if (options.model_vocabulary_size > kMostIds) {
    throw RowProblem(id_key + ": ids of a teacher are read for vocabularies of up to " +
                     std::to_string(kMostIds) + " tokens");
  }
  ColumnValues& columns = document.columns;
  columns.teacher_tokens = static_cast<size_t>(options.teacher_tokens);
  for (const ColumnId column : {kTeacherIdColumn, kTeacherLogpColumn}) {
    columns[column].resize(columns.teacher_tokens * document.labels.size());
  }
  const TrainedElements places(ids, id_key, document);
  if (!logps.is_array() || ids.size() != logps.size()) {
    throw RowProblem(logp_key + ": expected an array of " + std::to_string(ids.size()) +
                     " arrays, as " + id_key + ", found " +
                     (logps.is_array() ? std::to_string(logps.size()) : article_and_type(logps)));
  }
  places.each([&](size_t token, size_t place) {
    read_tokens_of_teacher(ids[place], place_of(id_key, place), logps[place],
                           place_of(logp_key, place), options, token, columns);
  });
}

}  // namespace

std::vector<float> read_numbers(const Json& values, const std::string& key,
                                const Document& document, bool not_negative) {
  std::vector<float> numbers(document.labels.size(), 0.0f);
  TrainedElements(values, key, document).each([&](size_t token, size_t place) {
    numbers[token] = read_number(values[place], place_of(key, place), not_negative);
  });
  return numbers;
}

std::vector<std::string> members_of(std::span<const ColumnId> columns,
                                    const RowFormatOptions& options) {
  std::vector<std::string> members;
  for (const ColumnId column : columns) {
    const ColumnTraits& traits = kColumnTable[column];
    members.push_back(options.name_of(traits.member));
    if (traits.of_whole_row) members.push_back(options.name_of(std::string(traits.name)));
  }
  return members;
}

void read_column(const Json& row, ColumnId column, const RowFormatOptions& options,
                 Document& document) {
  const ColumnTraits& traits = kColumnTable[column];
  if (traits.of_teacher) return read_teacher(row, options, document);
  const std::string many = options.name_of(traits.member);
  const std::string one = options.name_of(std::string(traits.name));
  const Json* const of_row = traits.of_whole_row ? member_of(row, one) : nullptr;
  if (traits.of_whole_row && (of_row == nullptr) == (member_of(row, many) == nullptr)) {
    throw RowProblem("expected either a number \"" + one + "\" or an array \"" + many +
                     "\", found " + (of_row == nullptr ? "none" : "both"));
  }
  std::vector<float>& values = document.columns[column];
  if (of_row != nullptr) {
    values.assign(document.labels.size(), read_number(*of_row, one, /*not_negative=*/false));
  } else {
    values = read_numbers(required_member(row, many), many, document, /*not_negative=*/false);
  }
}

}  // namespace longshore
