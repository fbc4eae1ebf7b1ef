#include "data/tokens/file_mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

std::string named_rule(const FileMix& mix) {
  return mix.rule == DataSection::Mix::kExhaust ? "data.mix = \"exhaust\""
                                                : "data.mix = \"restart\"";
}

std::vector<double> shares_of(const FileMix& mix) {
  std::vector<double> shares = mix.probabilities;
  if (shares.empty()) shares.assign(mix.entries.size(), 1.0);
  LONGSHORE_CHECK(!shares.empty() && shares.size() == mix.entries.size()) << shares.size();
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

// Returns the sums of numbers by file over the files of each entry.
std::vector<int64_t> by_entry(const FileMix& mix, std::span<const int64_t> numbers) {
  std::vector<int64_t> sums;
  for (const FileMix::Entry& entry : mix.entries) {
    LONGSHORE_CHECK(entry.files <= numbers.size());
    const std::span<const int64_t> own = numbers.first(entry.files);
    sums.push_back(std::accumulate(own.begin(), own.end(), int64_t{0}));
    numbers = numbers.subspan(entry.files);
  }
  LONGSHORE_CHECK(numbers.empty());
  return sums;
}

// Returns the rows of each entry in an epoch, of the rows that it has.
std::vector<int64_t> rows_in_epoch(const FileMix& mix, const std::vector<int64_t>& rows) {
  const std::vector<double> shares = shares_of(mix);
  std::vector<double> epochs;  // the number of rows of the epoch that reads the entry once
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == 0) {
      throw ConfigError(named_rule(mix) + ": " + mix.entries[i].name +
                        " has no row to train on; leave it out of data.train");
    }
    epochs.push_back(static_cast<double>(rows[i]) / shares[i]);
  }
  const bool exhaust = mix.rule == DataSection::Mix::kExhaust;
  const auto whole = exhaust ? std::ranges::min_element(epochs) : std::ranges::max_element(epochs);
  std::vector<int64_t> read;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double wanted = shares[i] * *whole, there = static_cast<double>(rows[i]);
    if (wanted > there * static_cast<double>(kMostReads)) {
      const auto rare = static_cast<size_t>(whole - epochs.begin());
      throw ConfigError(named_rule(mix) + " would read " + mix.entries[i].name + " " +
                        formatted("%.3g", wanted / there) + " times in an epoch, until " +
                        mix.entries[rare].name + " has been read; " + std::to_string(kMostReads) +
                        " times is the limit: change data.probabilities, or set data.mix = "
                        "\"exhaust\"");
    }
    read.push_back(epochs[i] == *whole ? rows[i] : std::llround(wanted));
    if (read.back() == 0) {
      throw ConfigError(named_rule(mix) + ": an epoch has " + formatted("%.0f", *whole) +
                        " rows, of which none would be of " + mix.entries[i].name +
                        "; raise its share in data.probabilities, or set data.mix = \"restart\"");
    }
  }
  return read;
}

}  // namespace

std::vector<int64_t> mixed_rows(const FileMix& mix, std::span<const int64_t> rows) {
  const std::vector<int64_t> there = by_entry(mix, rows);
  const std::vector<int64_t> read = rows_in_epoch(mix, there);
  std::vector<int64_t> read_of_file;
  for (size_t i = 0; i < mix.entries.size(); ++i) {
    // Every file of an entry is read as often as the entry as a whole; what is less than a pass is
    // divided among them by their rows. The last file with rows takes what is left.
    const int64_t passes = read[i] / there[i];
    int64_t part = read[i] % there[i], left = there[i];
    for (size_t f = 0; f < mix.entries[i].files; ++f) {
      const int64_t own = rows[read_of_file.size()];
      const int64_t more =
          own == 0 ? 0
                   : std::llround(static_cast<double>(part) *
                                  (static_cast<double>(own) / static_cast<double>(left)));
      read_of_file.push_back(passes * own + more);
      part -= more;
      left -= own;
    }
  }
  return read_of_file;
}

std::string mix_text(const FileMix& mix, std::span<const int64_t> rows,
                     std::span<const int64_t> read) {
  const std::vector<int64_t> there = by_entry(mix, rows), taken = by_entry(mix, read);
  const int64_t total = std::accumulate(taken.begin(), taken.end(), int64_t{0});
  std::vector<std::string> parts;
  for (size_t i = 0; i < taken.size(); ++i) {
    const auto own = static_cast<double>(taken[i]);
    parts.push_back(format_count(taken[i]) + " of " + mix.entries[i].name +
                    formatted(" (%.1f %%; %.2f passes)", 100.0 * own / static_cast<double>(total),
                              own / static_cast<double>(there[i])));
  }
  return named_rule(mix) + ": an epoch has " + format_count(total) +
         (total == 1 ? " row: " : " rows: ") + joined(parts, ", ");
}

}  // namespace longshore
