// Goal: the rows of an epoch of mixed files are those that TRL keeps and that datasets draws on
// average, each row of a file is read once before another is read again, and a mix that cannot be
// trained is refused.
#include "data/tokens/file_mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "data/tokens/dataset.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

constexpr auto kExhaust = DataSection::Mix::kExhaust;
constexpr auto kRestart = DataSection::Mix::kRestart;

// Returns a mix of entries of one file each.
FileMix mix_of(DataSection::Mix rule, size_t entries, std::vector<double> probabilities = {}) {
  FileMix mix{.rule = rule, .entries = {}, .probabilities = std::move(probabilities)};
  for (size_t i = 0; i < entries; ++i) mix.entries.push_back({"file " + std::to_string(i), 1});
  return mix;
}

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// Compares with what datasets drew. Until the entry `whole` has been drawn `rows` times, another
// one is drawn about rows * p / p_whole times, with the variance of a negative binomial
// distribution. Five standard deviations are allowed; without probabilities nothing is drawn.
void expect_drawn(const std::vector<int64_t>& read, const std::vector<int64_t>& drawn,
                  const std::vector<double>& probabilities, size_t whole) {
  if (probabilities.empty()) {
    EXPECT_EQ(read, drawn);
    return;
  }
  for (size_t i = 0; i < read.size(); ++i) {
    const auto mean = static_cast<double>(read[i]);
    const double deviation =
        i == whole ? 0.0 : std::sqrt(mean * (1.0 + probabilities[i] / probabilities[whole]));
    EXPECT_NEAR(mean, static_cast<double>(drawn.at(i)), 5.0 * deviation) << i;
  }
}

// Goal: "exhaust" is TRL's mixture, row for row, and both rules have the epochs of
// datasets.interleave_datasets, whose draws are random.
TEST(FileMix, HasTheRowsThatTrlKeepsAndThatDatasetsDraws) {
  std::ifstream file(test_data() + "/data/mix_golden.json");
  const Json cases = Json::parse(file);
  ASSERT_EQ(cases.size(), 7u);
  for (const Json& entry : cases) {
    const auto rows = entry.at("rows").get<std::vector<int64_t>>();
    const auto probabilities = entry.at("probabilities").get<std::vector<double>>();
    std::vector<double> epochs;
    for (size_t i = 0; i < rows.size(); ++i) {
      epochs.push_back(static_cast<double>(rows[i]) /
                       (probabilities.empty() ? 1.0 : probabilities[i]));
    }
    const auto least = static_cast<size_t>(std::ranges::min_element(epochs) - epochs.begin());
    const auto most = static_cast<size_t>(std::ranges::max_element(epochs) - epochs.begin());
    const auto under = mixed_rows(mix_of(kExhaust, rows.size(), probabilities), rows);
    const auto over = mixed_rows(mix_of(kRestart, rows.size(), probabilities), rows);
    if (entry.contains("trl")) {
      EXPECT_EQ(under, entry.at("trl").get<std::vector<int64_t>>());
    }
    for (const Json& drawn : entry.at("exhaust")) {
      expect_drawn(under, drawn.get<std::vector<int64_t>>(), probabilities, least);
    }
    for (const Json& drawn : entry.at("restart")) {
      expect_drawn(over, drawn.get<std::vector<int64_t>>(), probabilities, most);
    }
  }
}

// Goal: for any numbers of rows, files and shares one entry is read once, no entry more than once
// ("exhaust") or less than once ("restart"), and each has its share to half a row.
TEST(FileMix, GivesEachEntryItsShareForAnyNumbers) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    uint32_t drawn = 0;
    const auto random = [&](uint32_t below) {
      return philox4x32({drawn++, 0, 0, 0}, {seed, 7})[0] % below;
    };
    FileMix mix{.rule = seed % 2 == 0 ? kExhaust : kRestart, .entries = {}, .probabilities = {}};
    std::vector<int64_t> rows, rows_of_entry;
    for (uint32_t i = 0, entries = 1 + random(5); i < entries; ++i) {
      const size_t files = 1 + random(4);
      mix.entries.push_back({"entry", files});
      mix.probabilities.push_back(1.0 + random(9));
      rows_of_entry.push_back(0);
      for (size_t f = 0; f < files; ++f) {
        rows.push_back(f == 0 ? 10 + random(5000) : random(300));
        rows_of_entry.back() += rows.back();
      }
    }
    const double all = std::accumulate(mix.probabilities.begin(), mix.probabilities.end(), 0.0);
    for (double& probability : mix.probabilities) probability /= all;
    std::vector<int64_t> read;
    try {
      read = mixed_rows(mix, rows);
    } catch (const ConfigError&) {
      EXPECT_EQ(mix.rule, kRestart) << "an entry would be read more than 1000 times";
      continue;
    }
    ASSERT_EQ(read.size(), rows.size());
    std::vector<int64_t> read_of_entry;
    size_t file = 0;
    for (size_t i = 0; i < mix.entries.size(); ++i) {
      read_of_entry.push_back(0);
      const size_t end = file + mix.entries[i].files;
      for (size_t f = file; f < end; ++f) read_of_entry[i] += read[f];
      const int64_t passes = read_of_entry[i] / rows_of_entry[i];
      for (; file < end; ++file) {
        EXPECT_GE(read[file], passes * rows[file]) << seed;
        EXPECT_LE(read[file], (passes + 1) * rows[file]) << seed;
      }
    }
    double epoch = static_cast<double>(rows_of_entry[0]) / mix.probabilities[0];
    for (size_t i = 1; i < rows_of_entry.size(); ++i) {
      const double own = static_cast<double>(rows_of_entry[i]) / mix.probabilities[i];
      epoch = mix.rule == kExhaust ? std::min(epoch, own) : std::max(epoch, own);
    }
    for (size_t i = 0; i < read_of_entry.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(read_of_entry[i]), mix.probabilities[i] * epoch, 0.5 + 1e-6);
      const int64_t more = read_of_entry[i] - rows_of_entry[i];
      EXPECT_TRUE(mix.rule == kExhaust ? more <= 0 : more >= 0) << seed << ": " << more;
    }
  }
}

// Goal: many small files of one data set are read together as often as its share says, although a
// part of each of them alone would be no row.
TEST(FileMix, DividesAnEntrysRowsAmongItsFiles) {
  FileMix mix = mix_of(kExhaust, 2, {0.75, 0.25});
  mix.entries[1].files = 100;
  std::vector<int64_t> rows(101, 1);
  rows[0] = 90;
  const std::vector<int64_t> read = mixed_rows(mix, rows);
  EXPECT_EQ(read[0], 90);
  EXPECT_EQ(sum_of(read), 120) << "30 of the 100 files with one row each";
}

std::string refusal_of(const FileMix& mix, const std::vector<int64_t>& rows) {
  try {
    mixed_rows(mix, rows);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Goal: a mix in which a file would be missing, or which would have no bounds, is refused.
TEST(FileMix, RefusesWhatCannotBeTrained) {
  EXPECT_EQ(refusal_of(mix_of(kRestart, 2), {5, 0}),
            "data.mix = \"restart\": file 1 has no row to train on; leave it out of data.train");
  EXPECT_EQ(refusal_of(mix_of(kExhaust, 2, {0.999, 0.001}), {10, 10}),
            "data.mix = \"exhaust\": an epoch has 10 rows, of which none would be of file 1; raise "
            "its share in data.probabilities, or set data.mix = \"restart\"");
  EXPECT_EQ(refusal_of(mix_of(kRestart, 2, {0.999, 0.001}), {10, 100}),
            "data.mix = \"restart\" would read file 0 9.99e+03 times in an epoch, until file 1 has "
            "been read; 1000 times is the limit: change data.probabilities, or set data.mix = "
            "\"exhaust\"");
  EXPECT_NE(refusal_of(mix_of(kRestart, 2, {1.0, 1e-320}), {10, 100}), "") << "infinitely often";
  EXPECT_EQ(mixed_rows(mix_of(kRestart, 1), std::vector<int64_t>{3}), std::vector<int64_t>{3});
}

TEST(FileMix, SaysWhatAnEpochHas) {
  const std::vector<int64_t> rows = {3000, 3000};
  const FileMix mix = mix_of(kRestart, 2, {0.75, 0.25});
  EXPECT_EQ(mix_text(mix, rows, mixed_rows(mix, rows)),
            "data.mix = \"restart\": an epoch has 12 000 rows: 9 000 of file 0 (75.0 %; 3.00 "
            "passes), 3 000 of file 1 (25.0 %; 1.00 passes)");
}

// ---- The set of documents ----

// Rows of two documents each.
class PairedRows : public InMemoryDataset {
 public:
  explicit PairedRows(int64_t rows) {
    for (int64_t d = 0; d < 2 * rows; ++d) {
      const std::vector<TokenId> tokens = {static_cast<TokenId>(d), 0};
      add(tokens, tokens);
    }
  }
  bool row_goes_on(int64_t document) const override { return document % 2 == 1; }
};

// Returns files with these numbers of rows. The first token of row r of file f is 10 000 f + r.
std::vector<std::shared_ptr<const Dataset>> files_of(const std::vector<int64_t>& rows) {
  std::vector<std::shared_ptr<const Dataset>> files;
  for (size_t f = 0; f < rows.size(); ++f) {
    auto file = std::make_shared<InMemoryDataset>();
    for (int64_t row = 0; row < rows[f]; ++row) {
      const auto first = static_cast<TokenId>(static_cast<int64_t>(f) * 10'000 + row);
      const std::vector<TokenId> tokens = {first, 1};
      file->add(tokens, tokens);
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<int64_t> first_tokens(const Dataset& set) {
  std::vector<int64_t> first;
  for (int64_t d = 0; d < set.document_count(); ++d) {
    std::vector<int64_t> tokens, targets;
    set.append_document(d, tokens, targets);
    first.push_back(tokens.at(0));
  }
  return first;
}

// Goal: within an epoch the numbers of times that two rows of a file are read differ by one at
// most.
TEST(MixedFiles, ReadEveryRowOfAFileEquallyOften) {
  const std::vector<int64_t> rows = {40, 7, 100};
  for (const bool spread : {false, true}) {
    FileMix mix = mix_of(kRestart, 3, {0.5, 0.3, 0.2});
    mix.spread = spread;
    const CombinedDataset set(files_of(rows), {}, {.seed = 3}, mix);
    const std::vector<int64_t> read(set.rows_read().begin(), set.rows_read().end());
    EXPECT_EQ(read, (std::vector<int64_t>{250, 150, 100}));
    std::map<int64_t, int64_t> times;
    for (const int64_t first : first_tokens(set)) ++times[first];
    ASSERT_EQ(std::ssize(times), 147) << "every row";
    for (const auto& [first, count] : times) {
      const auto file = static_cast<size_t>(first / 10'000);
      EXPECT_GE(count, read[file] / rows[file]) << first;
      EXPECT_LE(count, (read[file] + rows[file] - 1) / rows[file]) << first;
    }
  }
  const CombinedDataset under(files_of(rows), {}, {.seed = 3},
                              mix_of(kExhaust, 3, {0.5, 0.3, 0.2}));
  std::vector<int64_t> first = first_tokens(under);
  EXPECT_EQ(std::ssize(first), 12 + 7 + 5);
  std::ranges::sort(first);
  EXPECT_EQ(std::ranges::adjacent_find(first), first.end()) << "no row twice";
}

// Goal: without shuffling the files alternate evenly, and each keeps its order: the rows of a file
// among the first t of N differ from its share of t by less than half a row and its share of half a
// row of each file.
TEST(MixedFiles, AreSpreadEvenlyInTheirOwnOrder) {
  const std::vector<int64_t> rows = {40, 7, 100};
  FileMix mix = mix_of(kRestart, 3, {0.5, 0.3, 0.2});
  mix.spread = true;
  const CombinedDataset set(files_of(rows), {}, {.seed = 3}, mix);
  std::vector<std::vector<int64_t>> seen(3);
  const std::vector<int64_t> first = first_tokens(set);
  for (size_t t = 0; t < first.size(); ++t) {
    seen.at(static_cast<size_t>(first[t] / 10'000)).push_back(first[t] % 10'000);
    for (size_t f = 0; f < 3; ++f) {
      const double share = static_cast<double>(set.rows_read()[f]) / 500.0;
      EXPECT_NEAR(static_cast<double>(seen[f].size()), share * static_cast<double>(t + 1),
                  0.5 + share * 1.5 + 1e-9)
          << t;
    }
  }
  for (size_t f = 0; f < 3; ++f) {
    const auto whole = static_cast<size_t>(set.rows_read()[f] / rows[f] * rows[f]);
    for (size_t i = 0; i < whole; ++i) {
      ASSERT_EQ(seen[f][i], static_cast<int64_t>(i) % rows[f]) << "whole passes in order";
    }
    EXPECT_TRUE(std::is_sorted(seen[f].begin() + static_cast<int64_t>(whole), seen[f].end()));
  }
}

// Goal: documents of one row are repeated, left out and spread together.
TEST(MixedFiles, KeepTheDocumentsOfARowTogether) {
  for (const bool spread : {false, true}) {
    for (const auto rule : {kExhaust, kRestart}) {
      FileMix mix = mix_of(rule, 2, {0.6, 0.4});
      mix.spread = spread;
      std::vector<std::shared_ptr<const Dataset>> files = {std::make_shared<PairedRows>(9),
                                                           std::make_shared<PairedRows>(20)};
      const CombinedDataset set(std::move(files), {}, {.seed = 1}, mix);
      EXPECT_EQ(set.document_count(), rule == kExhaust ? 2 * (9 + 6) : 2 * (30 + 20));
      const std::vector<int64_t> first = first_tokens(set);
      for (int64_t d = 0; d < set.document_count(); ++d) {
        EXPECT_EQ(set.row_goes_on(d), d % 2 == 1);
        EXPECT_EQ(first[static_cast<size_t>(d)] % 2, d % 2);
        if (d % 2 == 1) {
          EXPECT_EQ(first[static_cast<size_t>(d)], first[static_cast<size_t>(d - 1)] + 1);
        }
      }
    }
  }
}

// Goal: what eval.split holds out is not trained, and the mix counts the rows that are left.
TEST(MixedFiles, LeaveOutTheRowsThatAreHeldOut) {
  const HoldOut held{.part = HoldOut::Part::kHeldOut, .fraction = 0.25, .seed = 3};
  const HoldOut trained{.part = HoldOut::Part::kTrained, .fraction = 0.25, .seed = 3};
  const std::vector<int64_t> out = first_tokens(CombinedDataset(files_of({40, 8}), {}, held));
  EXPECT_EQ(out.size(), 12u);
  const CombinedDataset set(files_of({40, 8}), {}, trained, mix_of(kRestart, 2));
  EXPECT_EQ(set.document_count(), 60);
  for (const int64_t first : first_tokens(set)) {
    EXPECT_EQ(std::ranges::count(out, first), 0) << first;
  }
}

// Goal: the identity of the data has the mix: other rows or another order are other data, and a mix
// that reads every file once is the data without one.
TEST(MixedFiles, HaveTheMixInTheirFingerprint) {
  const auto fingerprint = [](const FileMix& mix) {
    return CombinedDataset(files_of({20, 20}), {}, {.seed = 3}, mix).fingerprint();
  };
  const uint64_t half = fingerprint(mix_of(kExhaust, 2, {0.7, 0.3}));
  EXPECT_EQ(half, fingerprint(mix_of(kExhaust, 2, {0.7, 0.3})));
  EXPECT_NE(half, fingerprint(mix_of(kExhaust, 2, {0.8, 0.2})));
  EXPECT_NE(half, fingerprint(mix_of(kRestart, 2, {0.7, 0.3})));
  FileMix spread = mix_of(kExhaust, 2, {0.7, 0.3});
  spread.spread = true;
  EXPECT_NE(half, fingerprint(spread));
  EXPECT_EQ(fingerprint(mix_of(kExhaust, 2)), fingerprint({}));
}

// Goal: runs without a mix resume with the identity that they saved. A file has the hash of its
// rows in it if it has a weight other than 1, also if this reads every row once.
TEST(MixedFiles, LeaveTheFingerprintsOfWeightsAsTheyWere) {
  const auto fingerprint = [](const std::vector<double>& weights) {
    return CombinedDataset(files_of({3}), weights, {.seed = 3}).fingerprint();
  };
  const auto of_rows = [](uint64_t rows) {
    const std::array<uint64_t, 2> facts = {files_of({3}).front()->fingerprint(), rows};
    Hasher hasher;
    hasher.update(bytes_of(std::span<const uint64_t>(facts)));
    return hasher.digest();
  };
  const std::vector<int64_t> rows = {0, 1, 2};
  EXPECT_EQ(fingerprint({}), of_rows(0));
  EXPECT_EQ(fingerprint({1.0}), of_rows(0));
  EXPECT_EQ(fingerprint({0.9}), of_rows(hash64(bytes_of(std::span<const int64_t>(rows)))));
}

}  // namespace
}  // namespace longshore
