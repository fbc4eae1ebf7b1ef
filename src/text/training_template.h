// TrainingTemplate: for chat templates of some published models, one that trains all answers of a
// conversation in one sample: it writes every answer as the model wrote it when it was asked for
// it, thoughts and all, and marks it with {% generation %}. Made of the published text by edits, so
// that all else stays as it is. Plain functions.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

struct TrainingTemplate {
  std::string name;  // of the template that it replaces
  std::string text;
};

// `origin` stands for the file in the error for a text that is not known: DataError.
TrainingTemplate training_template(std::string_view published, const std::string& origin);

}  // namespace longshore
