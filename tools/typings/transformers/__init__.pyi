# The names of transformers that this project uses, each from where it is defined: transformers' own
# list names every model it has, and a type checker that follows it reads thousands of files.

from transformers.cache_utils import DynamicCache as DynamicCache
from transformers.configuration_utils import PretrainedConfig as PretrainedConfig
from transformers.generation.logits_process import LogitsProcessorList as LogitsProcessorList
from transformers.generation.logits_process import MinPLogitsWarper as MinPLogitsWarper
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor as RepetitionPenaltyLogitsProcessor,
)
from transformers.generation.logits_process import (
    TemperatureLogitsWarper as TemperatureLogitsWarper,
)
from transformers.generation.logits_process import TopKLogitsWarper as TopKLogitsWarper
from transformers.generation.logits_process import TopPLogitsWarper as TopPLogitsWarper
from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_TEXT_ENCODING_MAPPING as MODEL_FOR_TEXT_ENCODING_MAPPING,
)
from transformers.models.auto.modeling_auto import AutoModel as AutoModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import (
    AutoModelForTextEncoding as AutoModelForTextEncoding,
)
from transformers.models.auto.modeling_auto import (
    AutoModelForTokenClassification as AutoModelForTokenClassification,
)
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.models.bert.configuration_bert import BertConfig as BertConfig
from transformers.models.bert.modeling_bert import BertModel as BertModel
from transformers.models.bert.tokenization_bert import BertTokenizer as BertTokenizer
from transformers.models.llama.configuration_llama import LlamaConfig as LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM as LlamaForCausalLM
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config as Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM as Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model as Qwen3Model
from transformers.pipelines import pipeline as pipeline
from transformers.tokenization_utils_base import PreTrainedTokenizerBase as PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import (
    PreTrainedTokenizerFast as PreTrainedTokenizerFast,
)

__version__: str
