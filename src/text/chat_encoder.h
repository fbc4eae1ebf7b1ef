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

class ChatEncoder {
 public:
  // Both must outlive the encoder.
  ChatEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat);

  // One sample, or several where the template writes an answer otherwise when more messages follow:
  // then each run of answers that are written the same is a sample, which ends with the last of
  // them. Every answer that `mask` names is trained once, behind the text that the template asks
  // for it with. Each text is tokenised as a whole; a token is trained if it overlaps a trained
  // part. Parts come from the template's {% generation %} blocks, or where it has none from growing
  // beginnings of the conversation. ChatProblem where the template refuses the conversation.
  std::vector<EncodedChat> encode(const Json& messages, const ChatVariables& variables,
                                  ChatMask mask) const;

 private:
  // A text, and the parts of it that are trained.
  struct Sample {
    std::string text;
    std::vector<TextSpan> spans;
  };

  std::vector<Sample> samples_of(const Json& messages, const ChatVariables& variables,
                                 const std::string& text, const std::vector<size_t>& answers) const;
  std::string_view open_end(std::string_view text, std::string_view longer) const;
  // Makes `next` the end of a run that it goes on from; false where it does not.
  bool extend(Sample& run, Sample& next) const;
  std::string_view opening_of(const Json& messages, size_t answer, const ChatVariables& variables,
                              std::string_view asked) const;
  // An answer alone, at the end of the text in which the model is asked for it.
  Sample asked_and_answered(const Json& messages, size_t answer, const ChatVariables& variables,
                            std::string after) const;
  EncodedChat encode_sample(Sample sample, bool end_at_special) const;
  void mark(const EncodedText& encoded, TextSpan span, bool end_at_special,
            EncodedChat& chat) const;

  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::string eos_text_;
};

}  // namespace longshore
