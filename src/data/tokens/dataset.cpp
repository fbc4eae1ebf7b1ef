#include "data/tokens/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/tokens/sampler.h"

namespace longshore {
namespace {

// Returns `chosen` of `count` numbers, selected by the seed, ascending.
std::vector<int64_t> pick(int64_t count, int64_t chosen, uint64_t seed,
                          IndexPermutation::Purpose purpose, int64_t round) {
  std::vector<int64_t> picked;
  if (chosen == 0) return picked;
  const IndexPermutation permutation(count, seed, purpose, round);
  for (int64_t i = 0; i < chosen; ++i) picked.push_back(permutation(i));
  std::sort(picked.begin(), picked.end());
  return picked;
}

std::vector<int64_t> without(int64_t count, const std::vector<int64_t>& left_out) {
  std::vector<int64_t> rest;
  auto next = left_out.begin();
  for (int64_t document = 0; document < count; ++document) {
    if (next != left_out.end() && *next == document) {
      ++next;
    } else {
      rest.push_back(document);
    }
  }
  return rest;
}

std::vector<int64_t> everything(int64_t count) {
  return without(count, {});
}

std::vector<int64_t> documents_of(const std::vector<int64_t>& rows,
                                  const std::vector<int64_t>& begins) {
  std::vector<int64_t> documents;
  documents.reserve(rows.size());
  for (const int64_t row : rows) {
    const auto begin = begins.begin() + row;
    for (int64_t document = *begin; document < *(begin + 1); ++document) {
      documents.push_back(document);
    }
  }
  return documents;
}

std::vector<int64_t> repeated(const std::vector<int64_t>& rows, double weight, uint64_t seed,
                              int64_t file) {
  const double whole = std::floor(weight);
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<int64_t> chosen;
  for (int64_t copy = 0; copy < static_cast<int64_t>(whole); ++copy) {
    chosen.insert(chosen.end(), rows.begin(), rows.end());
  }
  const auto rest =
      static_cast<int64_t>(std::llround((weight - whole) * static_cast<double>(count)));
  if (count == 0) return chosen;
  for (const int64_t i : pick(count, rest, seed, IndexPermutation::Purpose::kWeight, file)) {
    chosen.push_back(rows[static_cast<size_t>(i)]);
  }
  return chosen;
}

}  // namespace

std::vector<int64_t> rows_of_part(int64_t count, const HoldOut& hold_out, int64_t file) {
  if (hold_out.part == HoldOut::Part::kEverything || count == 0) return everything(count);
  const auto wanted = static_cast<int64_t>(std::llround(hold_out.fraction * count));
  const int64_t held = hold_out.fraction > 0.0 ? std::clamp<int64_t>(wanted, 1, count) : 0;
  std::vector<int64_t> held_out =
      pick(count, held, hold_out.seed, IndexPermutation::Purpose::kHoldOut, file);
  return hold_out.part == HoldOut::Part::kHeldOut ? held_out : without(count, held_out);
}

std::vector<int64_t> row_starts(const Dataset& dataset) {
  std::vector<int64_t> starts;
  for (int64_t document = 0; document < dataset.document_count(); ++document) {
    if (!dataset.row_goes_on(document)) starts.push_back(document);
  }
  starts.push_back(dataset.document_count());
  return starts;
}

CombinedDataset::CombinedDataset(std::vector<std::shared_ptr<const Dataset>> files,
                                 const std::vector<double>& weights, const HoldOut& hold_out) {
  LONGSHORE_CHECK(weights.empty() || weights.size() == files.size());
  Hasher hasher;
  for (size_t i = 0; i < files.size(); ++i) {
    const double weight = weights.empty() ? 1.0 : weights[i];
    const int64_t count = files[i]->document_count();
    Part part;
    part.begin = count_;
    part.all = weight == 1.0 && hold_out.part == HoldOut::Part::kEverything;
    if (!part.all) {
      const auto number = static_cast<int64_t>(i);
      const std::vector<int64_t> begins = row_starts(*files[i]);
      const auto rows = static_cast<int64_t>(begins.size()) - 1;
      part.chosen = documents_of(
          repeated(rows_of_part(rows, hold_out, number), weight, hold_out.seed, number), begins);
    }
    count_ += part.all ? count : static_cast<int64_t>(part.chosen.size());
    const std::array<uint64_t, 2> facts = {
        files[i]->fingerprint(),
        part.all ? 0 : hash64(bytes_of(std::span<const int64_t>(part.chosen)))};
    hasher.update(bytes_of(std::span<const uint64_t>(facts)));
    part.file = std::move(files[i]);
    parts_.push_back(std::move(part));
  }
  fingerprint_ = hasher.digest();
  if (count_ == 0) {
    throw DataError(
        "no document is left to train or evaluate on; check eval.split and data.weights");
  }
}

CombinedDataset::Place CombinedDataset::place_of(int64_t document) const {
  LONGSHORE_CHECK(document >= 0 && document < count_) << document << " of " << count_;
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), document,
                       [](int64_t number, const Part& part) { return number < part.begin; });
  const Part& part = *(after - 1);
  const int64_t index = document - part.begin;
  return {part.file.get(), part.all ? index : part.chosen[static_cast<size_t>(index)]};
}

int64_t CombinedDataset::document_tokens(int64_t document) const {
  const Place place = place_of(document);
  return place.file->document_tokens(place.document);
}

int64_t CombinedDataset::document_trained_tokens(int64_t document) const {
  const Place place = place_of(document);
  return place.file->document_trained_tokens(place.document);
}

bool CombinedDataset::row_goes_on(int64_t document) const {
  const Place place = place_of(document);
  return place.file->row_goes_on(place.document);
}

bool CombinedDataset::is_desirable(int64_t document) const {
  const Place place = place_of(document);
  return place.file->is_desirable(place.document);
}

bool CombinedDataset::has_column(ColumnId column) const {
  return std::ranges::any_of(parts_,
                             [&](const Part& part) { return part.file->has_column(column); });
}

size_t CombinedDataset::width_of(ColumnId column) const {
  size_t width = 0;
  for (const Part& part : parts_) width = std::max(width, part.file->width_of(column));
  return width;
}

std::vector<float> CombinedDataset::column_of(int64_t document, ColumnId column) const {
  const Place place = place_of(document);
  if (place.file->has_column(column)) return place.file->column_of(place.document, column);
  const auto tokens = static_cast<size_t>(place.file->document_tokens(place.document));
  return std::vector<float>(width_of(column) * tokens, default_of(column));
}

void CombinedDataset::append_document(int64_t document, std::vector<int64_t>& tokens,
                                      std::vector<int64_t>& targets) const {
  const Place place = place_of(document);
  place.file->append_document(place.document, tokens, targets);
}

MismatchedDataset::MismatchedDataset(const Dataset* rows, int64_t group, int64_t max_tokens)
    : rows_(rows), max_tokens_(max_tokens) {
  const std::vector<int64_t> starts = row_starts(*rows);
  if (starts.size() < 3) {
    throw DataError(
        "the data has only one row, but train.loss = \"kto\" compares answers with those of other "
        "rows");
  }
  int64_t widest = 1;
  for (size_t row = 1; row < starts.size(); ++row) {
    widest = std::max(widest, starts[row] - starts[row - 1]);
  }
  // Documents of a row differ in place by less than its width, also across the end of a group.
  const int64_t least = 2 * widest;
  for (size_t row = 1; row < starts.size(); ++row) {
    const int64_t size = starts[row] - std::ssize(partners_), left = starts.back() - starts[row];
    if (left > 0 && (size < std::max(group, least) || left < least)) continue;
    const int64_t begin = std::ssize(partners_);
    for (int64_t i = 0; i < size; ++i) {
      partners_.push_back(begin + (i + size - widest) % size);
    }
  }
  std::vector<int64_t> tokens, targets;
  for (int64_t document = 0; document < rows->document_count(); ++document) {
    targets.clear();
    rows->append_document(document, tokens, targets);
    tokens.clear();
    const auto first = std::ranges::find_if(targets, [](int64_t id) { return id != kNotTrained; });
    LONGSHORE_CHECK(first != targets.end()) << document;
    prompts_.push_back(first - targets.begin() + 1);
  }
}

int64_t MismatchedDataset::document_tokens(int64_t document) const {
  const int64_t partner = partners_.at(static_cast<size_t>(document));
  const int64_t answer = rows_->document_tokens(partner) - prompts_[static_cast<size_t>(partner)];
  return std::min(max_tokens_, prompts_[static_cast<size_t>(document)] + answer);
}

int64_t MismatchedDataset::document_trained_tokens(int64_t document) const {
  std::vector<int64_t> tokens, targets;
  append_document(document, tokens, targets);
  return std::ssize(targets) - std::ranges::count(targets, int64_t{kNotTrained});
}

void MismatchedDataset::append_document(int64_t document, std::vector<int64_t>& tokens,
                                        std::vector<int64_t>& targets) const {
  const int64_t partner = partners_.at(static_cast<size_t>(document));
  const int64_t prompt = prompts_[static_cast<size_t>(document)];
  const int64_t other_prompt = prompts_[static_cast<size_t>(partner)];
  const int64_t total = document_tokens(document);
  std::vector<int64_t> own, unused, other, other_targets;
  rows_->append_document(document, own, unused);
  rows_->append_document(partner, other, other_targets);
  tokens.insert(tokens.end(), own.begin(), own.begin() + prompt);
  tokens.insert(tokens.end(), other.begin() + other_prompt,
                other.begin() + other_prompt + (total - prompt));
  // The last position of a prompt has the answer's first token for target.
  targets.insert(targets.end(), static_cast<size_t>(prompt - 1), kNotTrained);
  const auto first = other_targets.begin() + (other_prompt - 1);
  targets.insert(targets.end(), first, first + (total - prompt));
  targets.push_back(kNotTrained);
}

uint64_t MismatchedDataset::fingerprint() const {
  const std::array<uint64_t, 3> facts = {rows_->fingerprint(), static_cast<uint64_t>(max_tokens_),
                                         hash64(bytes_of(std::span<const int64_t>(partners_)))};
  return hash64(bytes_of(std::span<const uint64_t>(facts)));
}

int64_t InMemoryDataset::add(std::span<const TokenId> tokens, std::span<const TokenId> labels) {
  LONGSHORE_CHECK(tokens.size() == labels.size()) << tokens.size() << " " << labels.size();
  if (tokens.empty()) return 0;
  const std::span<const TokenId> targets = labels.subspan(1);
  const int64_t untrained = std::count(targets.begin(), targets.end(), kNotTrained);
  const int64_t trained = static_cast<int64_t>(targets.size()) - untrained;
  if (trained == 0) return 0;

  const size_t start = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  targets_.insert(targets_.end(), targets.begin(), targets.end());
  targets_.push_back(kNotTrained);
  starts_.push_back(static_cast<int64_t>(tokens_.size()));
  trained_.push_back(static_cast<int32_t>(trained));

  const std::array<uint64_t, 1> length = {tokens.size()};
  hasher_.update(bytes_of(std::span<const uint64_t>(length)));
  hasher_.update(bytes_of(tokens));
  hasher_.update(bytes_of(std::span<const TokenId>(targets_).subspan(start)));
  return trained;
}

void InMemoryDataset::check_index(int64_t document) const {
  LONGSHORE_CHECK(document >= 0 && document < document_count())
      << document << " of " << document_count();
}

int64_t InMemoryDataset::document_tokens(int64_t document) const {
  check_index(document);
  return starts_[document + 1] - starts_[document];
}

int64_t InMemoryDataset::document_trained_tokens(int64_t document) const {
  check_index(document);
  return trained_[document];
}

void InMemoryDataset::append_document(int64_t document, std::vector<int64_t>& tokens,
                                      std::vector<int64_t>& targets) const {
  check_index(document);
  const int64_t begin = starts_[document], end = starts_[document + 1];
  tokens.insert(tokens.end(), tokens_.begin() + begin, tokens_.begin() + end);
  targets.insert(targets.end(), targets_.begin() + begin, targets_.begin() + end);
}

}  // namespace longshore
