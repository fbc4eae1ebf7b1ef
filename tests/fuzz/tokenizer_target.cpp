// The files of a tokenizer, through the C interface of its crate: the ids of a text are in the
// vocabulary, their spans in the text, and pieces give the ids of the whole.
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_tokenizer(std::string_view bytes) {
  std::vector<std::string> parts = parts_of(bytes, 5);
  const Tokenizer tokenizer = Tokenizer::from_files({.tokenizer = parts[0],
                                                     .tokenizer_config = parts[1],
                                                     .special_tokens_map = parts[2],
                                                     .generation_config = parts[3],
                                                     .model_config = parts[4]},
                                                    "tokenizer");
  const std::string text = " The caf\u00e9's  2 wizards,\n<s> \u4f60\u597d </s>\t\U0001f600 x1y";
  const EncodedText encoded = tokenizer.encode_with_spans(text, SpecialTokens::kAdd);
  LONGSHORE_CHECK(encoded.ids.size() == encoded.spans.size());
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    LONGSHORE_CHECK(encoded.ids[i] >= 0 && encoded.ids[i] < tokenizer.id_limit());
    LONGSHORE_CHECK(encoded.spans[i].begin <= encoded.spans[i].end);
    LONGSHORE_CHECK(encoded.spans[i].end <= text.size());
    tokenizer.token_of(encoded.ids[i]);
  }
  LONGSHORE_CHECK(tokenizer.encode(text, SpecialTokens::kAdd) == encoded.ids);
  tokenizer.decode(encoded.ids, /*skip_special=*/false);
  return true;
}

}  // namespace longshore
