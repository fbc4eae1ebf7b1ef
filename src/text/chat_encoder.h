// ChatEncoder: a conversation as token ids, with a mark on those that are trained. Immutable, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_template.h"

namespace longshore {

// Which tokens of a conversation are trained.
enum class ChatMask : uint8_t {
  kAssistant,   // what the assistant wrote, with the ends of its turns
  kCompletion,  // of that, what comes after the last message of another than assistant and tools
  kLast,        // of that, the last message
  kAll,         // everything
};

struct EncodedChat {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<bool> trained;  // one for each id
};

class ChatEncoder {
 public:
  // Both must outlive the encoder.
  ChatEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat);

  // The text is rendered and tokenised once, as a whole; a token is trained if it overlaps a
  // trained part. Parts come from the template's {% generation %} blocks, or where it has none from
  // the texts of growing beginnings of the conversation, which must be beginnings of each other.
  // ChatProblem where they are not, and where the template refuses the conversation.
  EncodedChat encode(const Json& messages, const ChatVariables& variables, ChatMask mask) const;

 private:
  std::vector<TextSpan> spans_by_prefix(const Json& messages, const ChatVariables& variables,
                                        const std::string& text,
                                        const std::vector<size_t>& assistants) const;
  void mark(const EncodedText& encoded, TextSpan span, bool end_at_special,
            EncodedChat& chat) const;

  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::string eos_text_;
};

}  // namespace longshore
