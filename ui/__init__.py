"""The page: gradio and plotly over the engine's public names."""
