"""The framework-neutral half of the LangChain and LlamaIndex retrievers."""
