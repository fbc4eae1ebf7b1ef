// TokenizerTrainer: learns a byte-level BPE tokenizer, the same one that the Python package learns
// from the same documents. Without documents or merges it is plain bytes. One owner thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct tokc_trainer;

namespace longshore {

struct TokenizerRecipe {
  int64_t vocabulary_size = 0;  // at most; special tokens and the 256 bytes included
  int64_t min_frequency = 2;    // pairs seen less often are not merged
  std::string bos_token{};      // empty: none
  std::string eos_token = "<|endoftext|>";
  std::vector<std::string> other_special_tokens{};
  bool bos_starts_text = false;  // the post-processor puts bos in front of every text
};

// What a model directory needs. Special tokens have the first ids: bos, eos, then the others.
struct TrainedTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

class TokenizerTrainer {
 public:
  // ConfigError where the recipe cannot be followed.
  explicit TokenizerTrainer(TokenizerRecipe recipe);
  TokenizerTrainer(TokenizerTrainer&&) noexcept;
  TokenizerTrainer& operator=(TokenizerTrainer&&) noexcept;
  ~TokenizerTrainer();

  // Counts the words of a document; its text is not kept.
  void add_document(std::string_view text);
  TrainedTokenizer finish();

 private:
  struct Free {
    void operator()(tokc_trainer* trainer) const noexcept;
  };
  TokenizerRecipe recipe_;
  std::unique_ptr<tokc_trainer, Free> handle_;
};

// A tokenizer whose tokens are the special ones and the 256 bytes.
TrainedTokenizer byte_tokenizer(TokenizerRecipe recipe);

}  // namespace longshore
