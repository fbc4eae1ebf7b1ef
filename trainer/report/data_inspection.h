// DataInspection: what a run would train on, for people to look at: rows with the tokens that are
// trained, counts, lengths, how full the sequences are. Made by `inspect data`; main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/data_report.h"
#include "trainer/data/run_prepare.h"

namespace longshore {

// A row before packing, or one of its samples.
struct InspectedRow {
  int64_t row = 0;                  // from 0, over all files; blank lines are none
  int64_t sample = 0, samples = 1;  // a conversation may be several
  std::string place;
  std::string text{};
  std::vector<TokenId> ids{};
  std::vector<TokenId> labels{};
  // What each token shows of `text`, or its name; empty where an earlier one shows its character.
  std::vector<std::string> pieces{};
  std::string problem{};  // empty: the row can be used
};

// Rows [first, last) of the files, read anew from them.
std::vector<InspectedRow> inspect_rows(const PrepareOptions& options, int64_t first, int64_t last);

struct DataStatistics {
  DataReport report;
  int64_t documents = 0, tokens = 0, trained_tokens = 0;
  int64_t duplicates = 0;  // documents whose tokens an earlier one has too
  int64_t sequences = 0;
  double efficiency = 0.0;  // tokens over sequences * max_tokens
  int64_t max_tokens = 0;
  std::vector<int64_t> length_counts;  // documents by length, in equal steps up to max_tokens
};

DataStatistics measure_data(const RunConfig& config, const RunPreparation& preparation,
                            const std::vector<std::string>& files);

// For a terminal; `colour`: escape sequences, else brackets around what is trained.
std::string describe_row(const InspectedRow& row, bool colour);
std::string describe_statistics(const DataStatistics& statistics);
// {"row", "text", "input_ids", "labels"}, or {"row", "problem"}.
Json row_as_json(const InspectedRow& row);
// One page that needs no other file.
std::string inspection_page(const DataStatistics& statistics,
                            const std::vector<InspectedRow>& rows);

}  // namespace longshore
