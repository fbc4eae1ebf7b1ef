// ChatEncoder: a conversation as token ids, with a mark on those that are trained. Immutable, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

// The template writes the conversation, but something else than its answers would be trained.
class AnswerProblem : public ChatProblem {
 public:
  using ChatProblem::ChatProblem;
};

// How many parts of a conversation the template writes in none of its samples.
struct ChatNotes {
  int64_t calls = 0;         // of tools
  int64_t thoughts = 0;      // of answers that are trained
  int64_t instructions = 0;  // contents of system messages, of results of tools, ...
  int64_t texts = 0;         // contents of the user's and the assistant's messages
  int64_t tools = 0;         // that may be called
  // Messages that are trained, and of whose contents and calls the template writes nothing.
  std::vector<size_t> emptied{};
};

struct ChatSample;

class ChatEncoder {
 public:
  // Both must outlive the encoder.
  ChatEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat);

  // One sample, or several where the template writes an answer otherwise when more messages follow:
  // then each run of answers that are written the same is a sample, which ends with the last of
  // them. Every answer that `mask` names is trained once, whole, behind the text that the template
  // asks for it with (answer_finder.h). Each text is tokenised as a whole; a token is trained if it
  // overlaps a trained part. Parts come from the template's {% generation %} blocks, or where it
  // has none from growing beginnings of the conversation. `notes`, where it is given, becomes what
  // the template does not write. ChatProblem where the template refuses the conversation, or where
  // something else than the answers would be trained.
  std::vector<EncodedChat> encode(const Json& messages, const ChatVariables& variables,
                                  ChatMask mask, ChatNotes* notes = nullptr) const;

 private:
  EncodedChat encode_sample(ChatSample sample, bool end_at_special) const;
  void mark(const EncodedText& encoded, TextSpan span, bool end_at_special,
            EncodedChat& chat) const;

  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::string eos_text_;
};

}  // namespace longshore
