"""The page: gradio and plotly over backend.Engine."""
