// Tokenizers made from text files, for the commands that make them. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer_trainer.h"

namespace longshore {

// Trained on the files; without any a token is a byte. `vocabulary` 0: as few tokens as it needs.
TrainedTokenizer make_tokenizer(const std::vector<std::string>& files, int64_t vocabulary);

// The rows of the embedding: the largest id + 1 of tokenizer.json.
int64_t id_limit_of(const TrainedTokenizer& tokenizer);

}  // namespace longshore
