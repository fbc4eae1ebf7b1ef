// TrainingTemplate: replaces the chat templates of some published models, so that one sample trains
// all answers of a conversation. It writes every answer, with its thought, as the model wrote it
// when asked, inside {% generation %} blocks. It is made by edits of the published text; the rest
// is unchanged. Plain functions.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

struct TrainingTemplate {
  std::string name;  // of the template that it replaces
  std::string text;
};

// Throws DataError if the text is unknown; `origin` replaces the file in the error text.
TrainingTemplate training_template(std::string_view published, const std::string& origin);

}  // namespace longshore
