#include "data/tokens/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

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

// Returns `read` rows: all of them as often as possible, then some that the seed selects.
std::vector<int64_t> repeated(const std::vector<int64_t>& rows, int64_t read, uint64_t seed,
                              int64_t file) {
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<int64_t> chosen;
  if (count == 0) return chosen;
  for (int64_t copy = 0; copy < read / count; ++copy) {
    chosen.insert(chosen.end(), rows.begin(), rows.end());
  }
  for (const int64_t i :
       pick(count, read % count, seed, IndexPermutation::Purpose::kWeight, file)) {
    chosen.push_back(rows[static_cast<size_t>(i)]);
  }
  return chosen;
}

int64_t row_count(const Dataset& dataset) {
  int64_t rows = 0;
  for (int64_t document = 0; document < dataset.document_count(); ++document) {
    rows += dataset.row_goes_on(document) ? 0 : 1;
  }
  return rows;
}

int64_t held_out_rows(int64_t count, const HoldOut& hold_out) {
  if (hold_out.fraction <= 0.0 || count == 0) return 0;
  const auto wanted = static_cast<int64_t>(std::llround(hold_out.fraction * count));
  return std::clamp<int64_t>(wanted, 1, count);
}

// Returns the size of rows_of_part().
int64_t row_count_of_part(int64_t count, const HoldOut& hold_out) {
  if (hold_out.part == HoldOut::Part::kEverything) return count;
  const int64_t held = held_out_rows(count, hold_out);
  return hold_out.part == HoldOut::Part::kHeldOut ? held : count - held;
}

// Returns the rows of each file in the set, of the rows that belong to the part.
std::vector<int64_t> weighted_rows(const std::vector<double>& weights,
                                   const std::vector<int64_t>& rows) {
  std::vector<int64_t> read;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double weight = weights.empty() ? 1.0 : weights[i], whole = std::floor(weight);
    read.push_back(static_cast<int64_t>(whole) * rows[i] +
                   std::llround((weight - whole) * static_cast<double>(rows[i])));
  }
  return read;
}

}  // namespace

std::vector<int64_t> rows_of_part(int64_t count, const HoldOut& hold_out, int64_t file) {
  if (hold_out.part == HoldOut::Part::kEverything || count == 0) return everything(count);
  std::vector<int64_t> held_out = pick(count, held_out_rows(count, hold_out), hold_out.seed,
                                       IndexPermutation::Purpose::kHoldOut, file);
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
                                 const std::vector<double>& weights, const HoldOut& hold_out,
                                 const FileMix& mix) {
  LONGSHORE_CHECK(weights.empty() || (weights.size() == files.size() && !mix.on()));
  // Whole files that are read once need no count, which is a pass over all documents.
  if (mix.on() || !weights.empty() || hold_out.part != HoldOut::Part::kEverything) {
    for (const auto& file : files) {
      rows_.push_back(row_count_of_part(row_count(*file), hold_out));
    }
    rows_read_ = mix.on() ? mixed_rows(mix, rows_) : weighted_rows(weights, rows_);
  }
  Hasher hasher;
  for (size_t i = 0; i < files.size(); ++i) {
    const int64_t count = files[i]->document_count();
    Part part;
    part.begin = count_;
    // A weight that rounds to one reading has its rows in the fingerprint, as runs have saved it.
    const bool once = mix.on() ? rows_read_[i] == rows_[i] : weights.empty() || weights[i] == 1.0;
    part.all = once && hold_out.part == HoldOut::Part::kEverything;
    if (!part.all) {
      const auto number = static_cast<int64_t>(i);
      const std::vector<int64_t> begins = row_starts(*files[i]);
      const auto rows = static_cast<int64_t>(begins.size()) - 1;
      part.chosen = documents_of(
          repeated(rows_of_part(rows, hold_out, number), rows_read_[i], hold_out.seed, number),
          begins);
    }
    count_ += part.all ? count : static_cast<int64_t>(part.chosen.size());
    const std::array<uint64_t, 2> facts = {
        files[i]->fingerprint(),
        part.all ? 0 : hash64(bytes_of(std::span<const int64_t>(part.chosen)))};
    hasher.update(bytes_of(std::span<const uint64_t>(facts)));
    part.file = std::move(files[i]);
    parts_.push_back(std::move(part));
  }
  if (count_ == 0) {
    throw DataError(
        "no document is left to train or evaluate on; check eval.split and data.weights");
  }
  if (mix.on() && mix.spread) {
    order_ = spread_order();
    hasher.update(bytes_of(std::span<const int64_t>(order_)));
  }
  fingerprint_ = hasher.digest();
}

std::vector<int64_t> CombinedDataset::spread_order() const {
  using Next = std::pair<double, size_t>;  // the place of a part's next row, and the part
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  std::vector<int64_t> row(parts_.size(), 0), document;
  const auto add_next = [&](size_t part) {
    if (row[part] == rows_read_[part]) return;
    const double middle = static_cast<double>(row[part]++) + 0.5;
    next.emplace(middle / static_cast<double>(rows_read_[part]), part);
  };
  for (size_t part = 0; part < parts_.size(); ++part) {
    document.push_back(parts_[part].begin);
    add_next(part);
  }
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(count_));
  while (!next.empty()) {
    const size_t part = next.top().second;
    next.pop();
    const int64_t end = part + 1 < parts_.size() ? parts_[part + 1].begin : count_;
    do {
      order.push_back(document[part]++);
    } while (document[part] < end && row_goes_on(document[part]));
    add_next(part);
  }
  return order;
}

CombinedDataset::Place CombinedDataset::place_of(int64_t document) const {
  LONGSHORE_CHECK(document >= 0 && document < count_) << document << " of " << count_;
  const int64_t number = order_.empty() ? document : order_[static_cast<size_t>(document)];
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), number,
                       [](int64_t value, const Part& part) { return value < part.begin; });
  const Part& part = *(after - 1);
  const int64_t index = number - part.begin;
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
