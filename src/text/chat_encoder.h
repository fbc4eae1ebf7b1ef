// ChatEncoder: converts a conversation to token ids and flags the trained ones. Immutable, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace longshore {

// ChatMask: selects the trained tokens of a conversation.
enum class ChatMask : uint8_t {
  kAssistant,   // the assistant's messages, with the ends of turns
  kCompletion,  // of those, all after the last message by another role (tools do not count)
  kLast,        // of those, the last message
  kAll,         // everything
};

struct EncodedChat {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<bool> trained;  // one for each id
  // One for each id: the weight of the message that a trained id belongs to. Empty if all weights
  // are 0 or 1.
  std::vector<float> weights;
};

// AnswerProblem: the template renders the conversation, but the answers cannot be trained exactly.
class AnswerProblem : public ChatProblem {
 public:
  using ChatProblem::ChatProblem;
};

// ChatNotes: counts the parts of a conversation, up to its last trained answer, that the template
// writes in no sample.
struct ChatNotes {
  int64_t calls = 0;         // of tools
  int64_t thoughts = 0;      // of answers that are trained
  int64_t instructions = 0;  // contents of system messages, tool results, ...
  int64_t texts = 0;         // contents of the user's and the assistant's messages
  int64_t tools = 0;         // definitions of callable tools
  // Indices of trained messages whose contents and calls the template does not write at all.
  std::vector<size_t> emptied{};
};

// Returns the messages in the form that the template reads: contents that are lists of parts become
// their joined texts where it reads only strings.
Json messages_for(const ChatTemplate& chat, Json messages, bool with_tools);

struct ChatSample;

class ChatEncoder {
 public:
  // Both pointers must outlive the encoder. `broken`: special tokens in the messages are broken up
  // (with_breaks).
  ChatEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat, bool broken = false);

  // Returns one sample, or several if the template changes an answer when more messages follow. In
  // that case consecutive answers that are rendered alike share a sample, which ends with the last
  // of them. Every answer that `mask` selects is trained once, whole, after the prompt that the
  // template writes for it (answer_finder.h). Each text is tokenized as a whole; a token is trained
  // if it overlaps a trained part. The parts are the template's {% generation %} blocks; without
  // such blocks they are found by rendering prefixes of the conversation. `notes` may be null.
  // Throws ChatProblem if the template refuses the conversation, or if tokens other than the
  // answers' would be trained.
  std::vector<EncodedChat> encode(const Json& messages, const ChatVariables& variables,
                                  ChatMask mask, ChatNotes* notes = nullptr) const;

 private:
  EncodedChat encode_sample(ChatSample sample, bool end_at_special,
                            const std::vector<float>& weights) const;
  void mark(const EncodedText& encoded, TextSpan span, bool end_at_special, float weight,
            EncodedChat& chat) const;

  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  bool broken_;
  std::string eos_text_;
};

}  // namespace longshore
