// Makes tokenizers from text files. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer_trainer.h"

namespace longshore {

// Trains on `files`; without files a token is a byte. `vocabulary` 0 is the smallest size.
TrainedTokenizer make_tokenizer(const std::vector<std::string>& files, int64_t vocabulary);

// Returns the number of embedding rows: the largest id of tokenizer.json + 1.
int64_t id_limit_of(const TrainedTokenizer& tokenizer);

}  // namespace longshore
