// AnswerFinder: splits a conversation into samples and finds the answers in their texts. Internal
// to src/text; one owner thread. An answer is located in one of two ways, never by searching for a
// message's text: the text that ends with the answer starts, byte for byte, with the prompt that
// asks for it; or marks show where the parts of the messages are (chat_marks.h). Every sample is
// checked before it is returned: it trains each answer's own rendering, whole and once, and nothing
// of any other message. Otherwise ChatProblem is thrown.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoder.h"
#include "text/chat_marks.h"

namespace longshore {

// AnswerSpan: a trained range of a sample's text.
struct AnswerSpan {
  // The span belongs to one of the assistant's messages, but which one is unknown.
  static constexpr size_t kAnyAnswer = static_cast<size_t>(-1);
  TextSpan text;
  size_t message = kAnyAnswer;
};

struct ChatSample {
  std::string text;
  std::vector<AnswerSpan> spans;  // in the order of the text
  size_t messages = 0;            // the text ends with the last of the first N messages
  // True if the template never writes this text as a whole: it is the prompt for the last answer,
  // joined with that answer's rendering. The last span is checked already.
  bool composed = false;
};

class AnswerFinder {
 public:
  // `text` is the template's rendering of `messages`; `eos` is the text of the tokenizer's end
  // token. The other arguments must outlive the finder.
  AnswerFinder(const ChatTemplate* chat, std::string_view eos, Json messages, std::string text,
               const ChatVariables* variables);

  // Returns the samples of `answers` (indices of messages). Consecutive answers that are rendered
  // alike share one sample, which ends with the last of them.
  std::vector<ChatSample> find(const std::vector<size_t>& answers);
  // Returns one sample whose spans are the template's {% generation %} blocks. The template may
  // leave parts of an answer out of them.
  ChatSample generated(std::vector<AnswerSpan> spans);
  // Returns the whole conversation as one sample with one span.
  ChatSample undivided();
  // Counts the message parts that the template writes into no sample. `answers` are the trained
  // messages.
  ChatNotes notes(const std::vector<size_t>& answers) const;

 private:
  // Seen: where the marks of one message part were found in a sample.
  struct Seen {
    bool begin = false, end = false;    // anywhere in the text
    bool begins = false, ends = false;  // in a span of its message
    bool whole = false;                 // from start to end in one span
    size_t span = 0;                    // index of the span in which the part begins
  };
  using Parts = std::map<PartName, Seen>;
  // Located: the marks found in a text, of all messages or only of the assistant's.
  struct Located {
    std::vector<PartMark> marks;
    MarkedRoles roles;
  };
  // Question: the prompt, that is the text that asks for an answer.
  struct Question {
    std::string_view text;
    std::string_view tail;         // the text after the last message part
    std::optional<PartMark> last;  // the end of that part
  };
  // Place: where an answer begins in the text that ends with it.
  struct Place {
    size_t from = 0;
    std::string_view unwritten;  // the end of the prompt that the text lacks
  };

  std::string render(const Json& messages, bool asking);
  std::string render_first(size_t count, bool asking);
  void without_opening(std::string& text) const;
  std::string text_with(size_t answer);
  std::string_view open_end(std::string_view text, std::string_view longer) const;
  std::optional<Located> locate(size_t count, bool asking, std::string_view text);
  std::vector<PartMark> marks_of(size_t count, bool asking, std::string_view text);
  ChatSample answered(size_t answer);
  ChatSample unasked(size_t answer, std::string after);
  ChatSample composed(size_t answer, std::string_view asked, std::string after);
  Question question_of(size_t answer, std::string_view asked, std::string_view before);
  std::optional<Place> place_of(size_t answer, const Question& question, std::string_view after,
                                const std::vector<PartMark>& marks);
  std::optional<Place> place_by_probe(size_t answer, const Question& question,
                                      std::string_view after);
  std::string_view opening_of(size_t answer, const Question& question);
  size_t begin_of_content(size_t answer, const PartMark& mark, std::string_view after);
  bool extend(ChatSample& run, ChatSample& next);
  void check(const ChatSample& sample, bool whole);
  void check_marks(const ChatSample& sample, const std::vector<PartMark>& marks, bool whole);
  void require_open_thought(const ChatSample& sample, const PartMark& mark, size_t ahead) const;
  void check_without_marks(const ChatSample& sample) const;
  Parts parts_in(const ChatSample& sample, const std::vector<PartMark>& marks) const;
  bool is_assistant(size_t message) const;

  const ChatTemplate* chat_;
  std::string_view eos_;
  Json messages_;  // a thought that the prompt closes is removed from it
  const ChatVariables* variables_;
  std::string text_;
  std::vector<PartName> parts_;  // every part of the conversation
  size_t rendered_ = 0;          // bytes rendered so far; limits the time
  std::set<PartName> written_;   // parts found in some sample
  // Whether marks were found in every sample: of the assistant's messages, and of all others.
  bool answers_known_ = true, all_known_ = true;
};

}  // namespace longshore
