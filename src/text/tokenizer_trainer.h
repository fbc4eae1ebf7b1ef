// TokenizerTrainer: trains a byte-level BPE tokenizer. From the same documents the Python package
// learns the same one. Without documents or merges tokens are single bytes. One owner thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct tokc_trainer;

namespace longshore {

struct TokenizerRecipe {
  int64_t vocabulary_size = 0;  // upper limit, with special tokens and the 256 bytes
  int64_t min_frequency = 2;    // pairs with a lower count are not merged
  std::string bos_token{};      // empty: none
  std::string eos_token = "<|endoftext|>";
  std::vector<std::string> other_special_tokens{};
  bool bos_starts_text = false;  // the post-processor puts bos in front of every text
};

// TrainedTokenizer: two files of a model. Special tokens have the first ids: bos, eos, others.
struct TrainedTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

class TokenizerTrainer {
 public:
  // Throws ConfigError if the recipe is invalid.
  explicit TokenizerTrainer(TokenizerRecipe recipe);
  TokenizerTrainer(TokenizerTrainer&&) noexcept;
  TokenizerTrainer& operator=(TokenizerTrainer&&) noexcept;
  ~TokenizerTrainer();

  // Counts the words of a document and does not keep its text.
  void add_document(std::string_view text);
  TrainedTokenizer finish();

 private:
  struct Free {
    void operator()(tokc_trainer* trainer) const noexcept;
  };
  TokenizerRecipe recipe_;
  std::unique_ptr<tokc_trainer, Free> handle_;
};

// Returns a tokenizer whose tokens are the special ones and the 256 bytes.
TrainedTokenizer byte_tokenizer(TokenizerRecipe recipe);

}  // namespace longshore
