// Spelled tokens: special tokens that the texts of a user's rows spell, such as "<|im_end|>" typed
// into a message. To be read as text, a token is broken up: a noncharacter of Unicode follows its
// first letter while a template writes it, and is removed before the result is encoded. Plain
// functions, any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/tokenizer.h"

namespace longshore {

// Returns the special tokens that a text spells, except the marks of thoughts, which are part of
// the form of a message.
std::vector<TextSpan> special_tokens_of(const Tokenizer& tokenizer, std::string_view text);

// Breaks up the special tokens of a text.
std::string with_breaks(const Tokenizer& tokenizer, std::string_view text);

// Calls `use` for each text in a value; names of members are none.
void for_each_text(Json& value, const std::function<void(std::string&)>& use);

// TextWithoutBreaks: a text whose breaks were removed.
struct TextWithoutBreaks {
  std::string text;
  std::vector<size_t> breaks;  // their offsets in `text`, ascending

  // Converts an offset in the text with breaks.
  size_t offset(size_t with_breaks) const;
  // Encodes the text; special tokens that were broken up are read as text.
  EncodedText encode(const Tokenizer& tokenizer, SpecialTokens special) const;
};
TextWithoutBreaks without_breaks(std::string text);

}  // namespace longshore
