// AnswerFinder: the samples that a conversation becomes, and which parts of their texts are the
// answers. Internal to src/text; one owner thread. No answer is found by comparing letters of
// messages: either the text that ends with the answer begins with the text that asks for it, byte
// for byte, or marks say where the parts of the messages are (chat_marks.h). Every sample is
// checked before it is given out: what is trained is each answer's own rendering, whole and once,
// and nothing of any other message. ChatProblem where it is not.
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

// A part of a sample's text that is trained.
struct AnswerSpan {
  // The owner is one of the assistant's messages, and it is not known which.
  static constexpr size_t kAnyAnswer = static_cast<size_t>(-1);
  TextSpan text;
  size_t message = kAnyAnswer;
};

struct ChatSample {
  std::string text;
  std::vector<AnswerSpan> spans;  // in the order of the text
  size_t messages = 0;            // the text ends with the last of so many
  // The text is not the template's as a whole: the answer at its end follows words that the
  // template writes only to ask for it. Its span is checked already.
  bool composed = false;
};

class AnswerFinder {
 public:
  // `text` is what the template writes of the conversation; `eos` is the text of the tokenizer's
  // end token. All but `messages` and `text` must outlive the finder.
  AnswerFinder(const ChatTemplate* chat, std::string_view eos, Json messages, std::string text,
               const ChatVariables* variables);

  // The samples of the answers, which are indices of messages. Each run of answers that are written
  // the same is a sample, which ends with the last of them.
  std::vector<ChatSample> find(const std::vector<size_t>& answers);
  // One sample, with the spans of the template's {% generation %} blocks. The template may leave
  // parts of an answer out of them.
  ChatSample generated(std::vector<AnswerSpan> spans);
  // One sample that is not divided into answers.
  ChatSample undivided();
  // What the template wrote in no sample. `answers` are those that are trained.
  ChatNotes notes(const std::vector<size_t>& answers) const;

 private:
  // What was found of a part of a message in a sample.
  struct Seen {
    bool begin = false, end = false;    // anywhere in the text
    bool begins = false, ends = false;  // in a span of its message
    bool whole = false;                 // from begin to end in one span
    size_t span = 0;                    // where it begins
  };
  using Parts = std::map<PartName, Seen>;
  // The text that asks for an answer.
  struct Question {
    std::string_view text;
    std::string_view tail;         // what is behind the last part of a message
    std::optional<PartMark> last;  // the end of that part
  };
  // Where an answer begins in the text that ends with it.
  struct Place {
    size_t from = 0;
    std::string_view unwritten;  // the last words of the question, which the text does not have
  };

  std::string render(const Json& messages, bool asking);
  std::string render_first(size_t count, bool asking);
  void without_opening(std::string& text) const;
  std::string text_with(size_t answer);
  std::string_view open_end(std::string_view text, std::string_view longer) const;
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
  Json messages_;  // a thought that the question closes is dropped from it
  const ChatVariables* variables_;
  std::string text_;
  std::vector<PartName> parts_;  // all that the conversation has
  size_t rendered_ = 0;          // bytes, which bound the time
  std::set<PartName> written_;   // in any sample
  // Whether marks were found in every sample: of the assistant's messages, and of all others.
  bool answers_known_ = true, all_known_ = true;
};

}  // namespace longshore
