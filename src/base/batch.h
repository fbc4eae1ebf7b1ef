// Batch: a micro-batch in host memory, from the data loader to the copy to the device: concatenated
// documents without padding. A unit computes it in one call. Plain value; any thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/columns.h"

namespace longshore {

struct Batch {
  ColumnValues columns;
  // The first token of each document, and the number of tokens at the end.
  std::vector<int64_t> document_starts;
  int64_t sequences = 0;
  int64_t trained_tokens = 0;

  Batch() = default;
  // Makes a batch with the columns that every batch has; positions restart at 0 in every document.
  Batch(std::vector<int64_t> tokens, std::vector<int64_t> positions, std::vector<int64_t> targets,
        std::vector<int64_t> starts)
      : document_starts(std::move(starts)) {
    this->tokens() = std::move(tokens);
    this->positions() = std::move(positions);
    this->targets() = std::move(targets);
  }

  std::vector<int64_t>& tokens() { return columns.get<kTokenIdColumn>(); }
  std::vector<int64_t>& positions() { return columns.get<kPositionColumn>(); }
  std::vector<int64_t>& targets() { return columns.get<kTargetColumn>(); }
  const std::vector<int64_t>& tokens() const { return columns.get<kTokenIdColumn>(); }
  const std::vector<int64_t>& positions() const { return columns.get<kPositionColumn>(); }
  const std::vector<int64_t>& targets() const { return columns.get<kTargetColumn>(); }
  const std::vector<int64_t>& documents() const { return columns.get<kDocumentColumn>(); }

  int64_t token_count() const { return static_cast<int64_t>(tokens().size()); }
};

}  // namespace longshore
